#include "base/result.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <utility>

namespace stasis {
namespace {

Status Inner() { return FailErrno(ENOSPC, "write x"); }
Status Outer() { return Annotate(Inner(), "cannot dump job a"); }

TEST(ResultTest, TheOutermostContextComesFirst) {
  Status status = Outer();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().ToString(), "cannot dump job a: write x: No space left on device");
  EXPECT_EQ(status.error().code, Code::kResourceExhausted);
}

// Every exhausted resource gives a message that names it, with advice.
TEST(ResultTest, AnExhaustedResourceIsNamed) {
  EXPECT_NE(ErrnoError(ENOSPC, "write /x").hint.find("stasis image gc"), std::string::npos);
  EXPECT_NE(ErrnoError(EDQUOT, "write /x").hint.find("quota"), std::string::npos);
  const std::string whose = std::string(" of ") + program_invocation_short_name + ", which is ";
  EXPECT_NE(ErrnoError(EMFILE, "open /x").hint.find("`ulimit -n`)" + whose), std::string::npos);
  EXPECT_NE(ErrnoError(EFBIG, "write /x").hint.find("does not support a file of this size"),
            std::string::npos);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit lower{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  const Error limited = ErrnoError(EFBIG, "write /x");
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(limited.hint.find("`ulimit -f`)" + whose + "1048576 bytes"), std::string::npos);
  // For a command typed in a shell, the limit is the shell's.
  char* const name = std::exchange(program_invocation_short_name, const_cast<char*>("stasis"));
  const std::string typed = ErrnoError(EMFILE, "open /x").hint;
  program_invocation_short_name = name;
  EXPECT_NE(typed.find("`ulimit -n`), which is "), std::string::npos);
  EXPECT_EQ(limited.code, Code::kResourceExhausted);
  EXPECT_EQ(ErrnoError(ENOENT, "open /x").hint, "");
}

// Internal files may exist too, so EEXIST alone does not mean that the user's name is taken.
TEST(ResultTest, EexistAloneIsNotAlreadyExists) {
  const Error error = ErrnoError(EEXIST, "make /x/.new-1");
  EXPECT_EQ(error.code, Code::kInternal);
  EXPECT_EQ(ExitCode(error), 1);
}

TEST(ResultTest, ExitCodesAreThoseOfTheCommandLine) {
  struct Row {
    Code code;
    Domain domain;
    bool not_undone;
    int exit_code;
  };
  static constexpr Row kRows[] = {
      {Code::kInternal, Domain::kStasis, false, 1},
      {Code::kInvalidArgument, Domain::kUsage, false, 2},
      {Code::kInvalidArgument, Domain::kImage, false, 1},
      {Code::kNotFound, Domain::kStasis, false, 3},
      {Code::kPermissionDenied, Domain::kErrno, false, 4},
      {Code::kUnimplemented, Domain::kStasis, false, 5},
      {Code::kInternal, Domain::kStasis, true, 6},
      {Code::kAlreadyExists, Domain::kStasis, false, 7},
      {Code::kAborted, Domain::kStasis, false, 7},
      {Code::kFailedPrecondition, Domain::kStasis, false, 7},
  };
  for (const Row& row : kRows) {
    Error error{row.code, row.domain, 0, "", "", {}, row.not_undone};
    EXPECT_EQ(ExitCode(error), row.exit_code) << CodeName(row.code);
  }
}

}  // namespace
}  // namespace stasis
