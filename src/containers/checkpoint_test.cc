#include "containers/checkpoint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"
#include "containers/testing/fake_runner.h"

namespace stasis::containers {
namespace {

std::string Line(const Result<std::vector<std::string>>& command) {
  if (!command) return "error: " + command.error().ToString();
  return fmt::format("{}", fmt::join(*command, " "));
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/checkpoint-XXXXXX";
    folder_ = ::mkdtemp(folder);
  }
  void TearDown() override { (void)RemoveTree(folder_); }

  static CheckpointRequest Of(Runtime runtime, const std::string& name) {
    CheckpointRequest request;
    request.container.reference = {runtime, name, runtime == Runtime::kContainerd ? "default" : ""};
    request.container.id = name;
    request.container.folder = "/bundle";
    request.compress = "none";
    return request;
  }

  std::string folder_;
  FakeRunner runner_;
};

TEST_F(CheckpointTest, PodmanKeepsItOrExportsIt) {
  CheckpointRequest request = Of(Runtime::kPodman, "web");
  EXPECT_EQ(Line(CheckpointCommand(request)), "podman container checkpoint web");
  request.leave_running = true;
  request.criu = {true, true};
  request.image = "/i/web.tar";
  EXPECT_EQ(Line(CheckpointCommand(request)),
            "podman container checkpoint --leave-running --tcp-established --file-locks --export "
            "/i/web.tar --compress none web");
}

TEST_F(CheckpointTest, CtrCanOnlyLeaveARestorableContainerRunning) {
  CheckpointRequest request = Of(Runtime::kContainerd, "t1");
  request.image = "t1-saved";
  EXPECT_NE(Line(CheckpointCommand(request)).find("leaves a container running"), std::string::npos);
  request.leave_running = true;
  EXPECT_EQ(Line(CheckpointCommand(request)),
            "ctr --namespace default containers checkpoint --image --rw --task t1 t1-saved");
  request.container.restorable = false;
  EXPECT_NE(Line(CheckpointCommand(request)).find("was not created from an image"),
            std::string::npos);
  request.container.restorable = true;
  request.criu.tcp_keep = true;
  EXPECT_NE(Line(CheckpointCommand(request)).find("no option for --tcp=keep"), std::string::npos);
}

TEST_F(CheckpointTest, AnImageOfContainerdWithoutProcessesIsAFailure) {
  CheckpointRequest request = Of(Runtime::kContainerd, "t1");
  request.image = "t1-saved";
  request.leave_running = true;
  const std::string ctr = "ctr --namespace default ";
  runner_.Answer(ctr + "containers checkpoint --image --rw --task t1 t1-saved", "");
  runner_.Answer(ctr + "images ls name==t1-saved",
                 "REF TYPE DIGEST SIZE\nt1-saved application/index sha256:ab12 1.5 KiB\n");
  runner_.Answer(
      ctr + "content get sha256:ab12",
      R"({"manifests":[{"mediaType":"application/vnd.containerd.container.criu.checkpoint.criu.tar",
          "digest":"sha256:cd"}]})");
  Status done = Checkpoint(runner_, request, {});
  EXPECT_TRUE(done) << done.error().ToString();
  runner_.Answer(ctr + "content get sha256:ab12",
                 R"({"manifests":[{"mediaType":"layer.v1.tar+gzip","digest":"sha256:cd"}]})");
  done = Checkpoint(runner_, request, {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kFailedPrecondition);
  EXPECT_EQ(runner_.commands().back(), ctr + "images rm t1-saved");
}

TEST_F(CheckpointTest, RuncsImageRemembersItsBundle) {
  CheckpointRequest request = Of(Runtime::kRunc, "one");
  request.places.runc_root = "/r";
  request.image = folder_ + "/one-1";
  runner_.Answer("runc --root /r checkpoint --image-path " + request.image + "/checkpoint one", "");
  Status done = Checkpoint(runner_, request, {});
  ASSERT_TRUE(done) << done.error().ToString();
  auto image = ReadRuncImage(request.image);
  ASSERT_TRUE(image) << image.error().ToString();
  EXPECT_EQ(image->bundle, "/bundle");
  EXPECT_EQ(image->root, "/r");
  EXPECT_EQ(*LatestRuncImage(folder_, "one"), request.image);
  EXPECT_EQ(LatestRuncImage(folder_, "two").error().code, Code::kNotFound);
  // The folder of a checkpoint must not exist yet.
  EXPECT_EQ(Checkpoint(runner_, request, {}).error().code, Code::kAlreadyExists);

  RestoreRequest restore;
  restore.reference = request.container.reference;
  restore.runc_image = request.image;
  restore.new_name = "two";
  EXPECT_EQ(Line(RestoreCommand(restore)), "runc restore --detach --image-path " + request.image +
                                               "/checkpoint --bundle /bundle two");
}

TEST_F(CheckpointTest, AFailedOneOfRuncLeavesNothing) {
  CheckpointRequest request = Of(Runtime::kRunc, "one");
  request.image = folder_ + "/one-1";
  runner_.Refuse("runc checkpoint --image-path " + request.image + "/checkpoint one",
                 "level=error msg=\"criu failed: type NOTIFY errno 0\"\n");
  Status failed = Checkpoint(runner_, request, {});
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("criu failed"), std::string::npos);
  EXPECT_FALSE(PathExists(request.image));
}

TEST_F(CheckpointTest, ADamagedImageIsNamed) {
  EXPECT_EQ(ReadRuncImage(folder_).error().code, Code::kNotFound);
  for (const char* text :
       {"", "[]", R"({"id": 1})", R"({"id": "a", "bundle": "rel", "root": "", "time_ms": 1})"}) {
    ASSERT_TRUE(ReplaceFile(folder_ + "/container.json", text));
    EXPECT_EQ(ReadRuncImage(folder_).error().code, Code::kDataLoss) << text;
  }
}

TEST_F(CheckpointTest, PodmanRestoresInPlaceOrFromAnArchive) {
  RestoreRequest request;
  request.reference = {Runtime::kPodman, "web", ""};
  EXPECT_EQ(Line(RestoreCommand(request)), "podman container restore web");
  request.new_name = "copy";
  EXPECT_NE(Line(RestoreCommand(request)).find("only from an archive"), std::string::npos);
  request.archive = "/i/web.tar";
  EXPECT_EQ(Line(RestoreCommand(request)),
            "podman container restore --import /i/web.tar --name copy");
}

TEST_F(CheckpointTest, CtrRestoresUnderANewId) {
  RestoreRequest request;
  request.reference = {Runtime::kContainerd, "t1-saved", "default"};
  EXPECT_NE(Line(RestoreCommand(request)).find("needs a new id"), std::string::npos);
  request.new_name = "t2";
  EXPECT_EQ(Line(RestoreCommand(request)),
            "ctr --namespace default containers restore --rw --live t2 t1-saved");
}

TEST_F(CheckpointTest, TheRestoredContainerIsLookedUp) {
  RestoreRequest request;
  request.reference = {Runtime::kPodman, "web", ""};
  request.archive = "/i/web.tar";
  runner_.Answer("podman container restore --import /i/web.tar", "e3cd9f56584e\n");
  runner_.Answer("podman container inspect e3cd9f56584e",
                 R"([{"Id": "e3cd9f56584e", "State": {"Status": "running", "Pid": 7}}])");
  auto restored = Restore(runner_, request, {});
  ASSERT_TRUE(restored) << restored.error().ToString();
  EXPECT_EQ(restored->reference.ToString(), "podman:e3cd9f56584e");
  EXPECT_EQ(restored->pid, 7);
}

TEST_F(CheckpointTest, TheGpuMapIsPassedInTheEnvironment) {
  RestoreRequest request;
  request.reference = {Runtime::kPodman, "web", ""};
  request.gpu_map = "0=1";
  runner_.Refuse("podman container restore web", "");
  EXPECT_FALSE(Restore(runner_, request, {}));
  EXPECT_EQ(runner_.variables(), std::vector<std::string>{"LC_STASIS_GPU_MAP=0=1"});
  request.reference = {Runtime::kContainerd, "web", "default"};
  request.new_name = "t2";
  EXPECT_NE(Line(RestoreCommand(request)).find("--gpu-map"), std::string::npos);
}

TEST_F(CheckpointTest, RuncsContainerDoesNotHoldOurPipes) {
  CheckpointRequest saved = Of(Runtime::kRunc, "one");
  saved.image = folder_ + "/i";
  runner_.Answer("runc checkpoint --image-path " + saved.image + "/checkpoint one", "");
  ASSERT_TRUE(Checkpoint(runner_, saved, {}));
  RestoreRequest request;
  request.reference = saved.container.reference;
  request.runc_image = saved.image;
  runner_.Refuse(
      "runc restore --detach --image-path " + saved.image + "/checkpoint --bundle /bundle one", "");
  EXPECT_FALSE(Restore(runner_, request, {}));
  EXPECT_EQ(runner_.output_file(), "/dev/null");
}

TEST(CriuLogTest, ThePluginsSentenceCountsMost) {
  const std::string log =
      "(00.000020) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: x\n"
      "(00.1) Error (criu/files-reg.c:1790): Can't lookup mount=46\n"
      "(00.2) Error (stasis_plugin): stasis: no daemon runs\n"
      "(00.3) Error (criu/cr-dump.c:1975): Dumping FAILED.\n";
  EXPECT_EQ(ReasonInCriuLog(log), "no daemon runs");
  EXPECT_EQ(ReasonInCriuLog("x\n(1) Error (a.c:1): first\n(2) Error (b.c:2): second\n"),
            "Error (a.c:1): first");
  EXPECT_EQ(ReasonInCriuLog("(1) Error (a.c:1): first\n"
                            "(2) Error (stasis_plugin): stasis: cannot dump 1: cpu-dump: CRIU "
                            "could not dump the program.\n"),
            "Error (a.c:1): first");
  EXPECT_EQ(ReasonInCriuLog("all is well\n"), "");
}

}  // namespace
}  // namespace stasis::containers
