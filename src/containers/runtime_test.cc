#include "containers/runtime.h"

#include <gtest/gtest.h>

#include "containers/testing/fake_runner.h"

namespace stasis::containers {
namespace {

const Reference kWeb{Runtime::kPodman, "web", ""};
const Reference kRuncOne{Runtime::kRunc, "one", ""};
const Reference kTask{Runtime::kContainerd, "t1", "default"};

// Shortened outputs of podman 4.3, runc 1.1 and ctr 1.6.
constexpr char kInspect[] = R"([{"Id": "e3cd9f56584e1a9d", "State": {"Status": "running",
  "Pid": 29814, "ConmonPid": 29804}, "StaticDir": "/g/userdata", "OCIRuntime": "runc"}])";
constexpr char kExited[] = R"([{"Id": "e3cd9f56584e1a9d", "State": {"Status": "exited",
  "Pid": 0}}])";
constexpr char kPs[] = R"([{"Id": "e3cd9f56584e1a9d0123", "Names": ["web"], "Pid": 29814,
  "State": "running"}, {"Id": "0123456789abcdef", "Names": null, "Pid": 77, "State": "exited"}])";
constexpr char kTasks[] =
    "TASK    PID     STATUS    \n"
    "t1      4711    RUNNING\n"
    "t2      0       STOPPED\n";

TEST(RuntimeTest, PodmanInspectIsUnderstood) {
  auto container = ParsePodmanInspect(kInspect, kWeb);
  ASSERT_TRUE(container) << container.error().ToString();
  EXPECT_EQ(container->pid, 29814);
  EXPECT_EQ(container->status, "running");
  EXPECT_EQ(container->oci_runtime, "runc");
  EXPECT_EQ(container->folder, "/g/userdata");
}

TEST(RuntimeTest, AContainerThatHasEndedHasNoPid) {
  EXPECT_EQ(ParsePodmanInspect(kExited, kWeb)->pid, 0);
  auto all = ParsePodmanPs(kPs);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].reference.ToString(), "podman:web");
  EXPECT_EQ((*all)[1].reference.ToString(), "podman:0123456789ab");
  EXPECT_EQ((*all)[1].pid, 0);
}

TEST(RuntimeTest, RuncStateAndListAreUnderstood) {
  auto one = ParseRuncState(R"({"id": "one", "pid": 30144, "status": "paused", "bundle": "/b"})",
                            kRuncOne);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->pid, 30144);
  EXPECT_EQ(one->folder, "/b");
  auto all = ParseRuncList(R"([{"id": "one", "pid": 0, "status": "stopped"}])");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->size(), 1u);
  EXPECT_TRUE(ParseRuncList("null")->empty());
}

TEST(RuntimeTest, CtrTasksAreUnderstood) {
  auto all = ParseCtrTasks(kTasks, "k8s.io");
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].reference.ToString(), "containerd:k8s.io/t1");
  EXPECT_EQ((*all)[0].pid, 4711);
  EXPECT_EQ((*all)[0].status, "running");
  EXPECT_EQ((*all)[1].pid, 0);
}

TEST(RuntimeTest, OtherOutputIsAnErrorAndNoCrash) {
  for (const char* text : {"", "x", "{}", "[]", "[1]", "[{}]", "[{\"State\": 3}]", "null",
                           "[{\"Id\": 1, \"State\": {\"Pid\": \"7\"}}]", "[{\"State\": null}]"}) {
    EXPECT_FALSE(ParsePodmanInspect(text, kWeb)) << text;
    EXPECT_FALSE(ParseRuncState(text, kRuncOne)) << text;
    EXPECT_FALSE(ParseCtrTasks(text, "default")) << text;
  }
  EXPECT_FALSE(ParsePodmanPs("[{}]"));
  EXPECT_FALSE(ParseRuncList("[7]"));
  EXPECT_FALSE(ParseCtrTasks("TASK PID STATUS\nx y z\n", "default"));
}

TEST(RuntimeTest, AMissingContainerIsNotFound) {
  FakeRunner runner;
  runner.Refuse("podman container inspect web",
                "[]\nError: inspecting object: no such container web\n");
  runner.Refuse("runc state one", "time=\"x\" level=error msg=\"container does not exist\"\n");
  EXPECT_EQ(FindContainer(runner, kWeb, {}, {}).error().code, Code::kNotFound);
  EXPECT_EQ(FindContainer(runner, kRuncOne, {}, {}).error().code, Code::kNotFound);
}

TEST(RuntimeTest, ARuntimeThatIsNotInstalledCannot) {
  FakeRunner runner;
  auto found = FindContainer(runner, kWeb, {}, {});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kUnimplemented);
  EXPECT_NE(found.error().hint.find("install podman"), std::string::npos);
}

TEST(RuntimeTest, ATaskOfARootfsCannotBeRestored) {
  FakeRunner runner;
  runner.Answer("ctr --namespace default containers info t1", R"({"ID": "t1", "Image": ""})");
  runner.Answer("ctr --namespace default tasks ls", kTasks);
  auto found = FindContainer(runner, kTask, {}, {});
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->pid, 4711);
  EXPECT_FALSE(found->restorable);
}

TEST(RuntimeTest, OnlyARunningContainerIsATarget) {
  FakeRunner runner;
  runner.Answer("podman container inspect web", kExited);
  auto found = FindRunning(runner, kWeb, {}, {});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kFailedPrecondition);
  EXPECT_NE(found.error().message.find("exited"), std::string::npos);
}

TEST(RuntimeTest, AContainerOfPodmanIsListedOnce) {
  FakeRunner runner;
  runner.Install("podman", "/usr/bin/podman");
  runner.Install("runc", "/usr/sbin/runc");
  runner.Answer("podman ps --all --format json", kPs);
  runner.Answer("runc --root /r list --format json",
                R"([{"id": "e3cd", "pid": 29814, "status": "running"},
                    {"id": "one", "pid": 5, "status": "running"}])");
  const Listed listed = ListContainers(runner, {"/r", "/nowhere/c.sock"}, {});
  ASSERT_EQ(listed.containers.size(), 3u);
  EXPECT_EQ(listed.containers[2].reference.ToString(), "runc:one");
  EXPECT_TRUE(listed.problems.empty());
}

TEST(RuntimeTest, ARuntimeThatFailsHidesNoOther) {
  FakeRunner runner;
  runner.Install("podman", "/usr/bin/podman");
  runner.Install("runc", "/usr/sbin/runc");
  runner.Refuse("podman ps --all --format json", "Error: database is locked\n");
  runner.Answer("runc list --format json", "null");
  const Listed listed = ListContainers(runner, {"", "/nowhere/c.sock"}, {});
  EXPECT_TRUE(listed.containers.empty());
  ASSERT_EQ(listed.problems.size(), 1u);
  EXPECT_NE(listed.problems[0].find("database is locked"), std::string::npos);
}

}  // namespace
}  // namespace stasis::containers
