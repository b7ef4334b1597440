// Dumps and restores real programs with real CRIU, and compares their resources before and after.
#include <sys/socket.h>

#include "criu/preflight.h"
#include "criu/stdio.h"
#include "criu/testing.h"

namespace stasis::criu {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

struct Case {
  const char* what;
  const char* option;  // K=V or null
};
constexpr Case kCases[] = {
    {"memory", nullptr},         {"pipe", nullptr},         {"unix-pair", nullptr},
    {"deleted", nullptr},        {"timer", nullptr},        {"file-lock", "file-locks"},
    {"tcp-listen", nullptr},     {"children", nullptr},     {"threads", nullptr},
    {"zombie", nullptr},         {"anon", nullptr},         {"tcp-closed", "tcp=close"},
    {"tcp-connect", "tcp=keep"}, {"renamed", "link-remap"},
};

class RoundTrip : public WithCriu, public ::testing::WithParamInterface<Case> {};

// Restores twice, because the second dump is of a process that CRIU created, and because the first
// tree must not leave a zombie that occupies its pid.
TEST_P(RoundTrip, IsRestoredTwice) {
  const Case& c = GetParam();
  Target target({c.what});
  Options options;
  if (c.option != nullptr) {
    ASSERT_TRUE(IsOk(options.Set(c.option)));
  }
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(RemoveTree(target.images()));
    DumpRequest dump = target.Dump();
    dump.options = options;
    ASSERT_TRUE(IsOk(MustSpawn().Dump(dump, nullptr, Soon()))) << target.Log();
    EXPECT_TRUE(WIFSIGNALED(target.Reap()));
    long before = target.Count();
    RestoreRequest restore = target.Restore();
    restore.options = options;
    auto pid = MustSpawn().Restore(restore, nullptr, Soon());
    ASSERT_TRUE(IsOk(pid)) << target.Log();
    EXPECT_EQ(*pid, target.pid());
    EXPECT_TRUE(target.Counts()) << target.State();
    EXPECT_GT(target.Count(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RoundTrip, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.what;
  if (info.param.option != nullptr) name += std::string("With") + info.param.option;
  std::erase_if(name, [](char c) { return c == '-' || c == '='; });
  return name;
});

}  // namespace
}  // namespace stasis::criu
