#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace stasis {
namespace {

Status Inner() { return FailErrno(ENOSPC, "write x"); }
Status Outer() { return Annotate(Inner(), "cannot dump job a"); }

TEST(ResultTest, ContextIsReadFromTheOutside) {
  Status status = Outer();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().ToString(), "cannot dump job a: write x: No space left on device");
  EXPECT_EQ(status.error().code, Code::kResourceExhausted);
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
