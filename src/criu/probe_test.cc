#include "criu/probe.h"

#include <sys/stat.h>

#include "criu/testing.h"

namespace stasis::criu {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

TEST(Probe, FindsASuitableCriu) {
  auto path = FindCriu(ChosenCriu());
  ASSERT_TRUE(IsOk(path));
  EXPECT_EQ(::access(path->c_str(), X_OK), 0);
  auto version = FoundVersion(ChosenCriu(), Soon());
  ASSERT_TRUE(IsOk(version));
  EXPECT_GE(*version, "4.1");
}

TEST(Probe, AMissingCriuHasAHint) {
  for (const char* path : {"/nonexistent/criu", "/bin/false"}) {
    auto found = FindCriu(path);
    ASSERT_FALSE(found);
    EXPECT_NE(found.error().ToString().find(path), std::string::npos) << found.error().ToString();
    EXPECT_EQ(ExitCode(found.error()), 5);
    EXPECT_NE(found.error().hint.find("./run setup"), std::string::npos);
  }
}

TEST(Probe, RejectsAnOldCriuWithItsVersion) {
  char folder[] = "/tmp/stasis-criu-test.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::string path = std::string(folder) + "/criu";
  // The version reply of CRIU 3.17: type 10, success, version {3, 17}.
  ASSERT_TRUE(
      WriteFileDurably(path,
                       "#!/bin/sh\nhead -c1 <&3 >/dev/null\n"
                       "printf '\\010\\012\\020\\001\\122\\004\\010\\003\\020\\021' >&3\n"));
  ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
  {
    auto found = FindCriu(path);
    ASSERT_FALSE(found);
    EXPECT_EQ(ExitCode(found.error()), 5);
    EXPECT_NE(found.error().ToString().find("is CRIU 3.17, but 4.1 or newer is needed"),
              std::string::npos)
        << found.error().ToString();
  }
  EXPECT_TRUE(RemoveTree(folder));
}

class MachineProbe : public WithCriu {};

TEST_F(MachineProbe, AllFindingsAreGood) {
  auto findings = ProbeMachine(ChosenCriu(), Soon());
  ASSERT_EQ(findings.size(), 5u);
  for (const Finding& finding : findings) {
    EXPECT_TRUE(finding.ok) << finding.name << ": " << finding.meaning;
    EXPECT_FALSE(finding.meaning.empty());
  }
}

TEST_F(MachineProbe, ReportsTheRightsThatAUserLacks) {
  // Runs in a child, because dropped capabilities cannot be regained.
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool right = ::setgid(65534) == 0 && ::setuid(65534) == 0;
    for (const Finding& finding : ProbeMachine(ChosenCriu(), Soon())) {
      bool privileged = finding.name != "criu" && finding.name != "ptrace";
      if (privileged && (finding.ok || finding.fix.empty())) right = false;
    }
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace stasis::criu
