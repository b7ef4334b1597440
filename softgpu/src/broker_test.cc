#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "testing.h"

namespace softgpu::test {
namespace {

namespace fs = std::filesystem;

// A directory with separate GPUs, for tests of the broker's lifetime.
class BrokerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/softgpu-broker-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override {
    EXPECT_TRUE(Eventually([&] { return !BrokerPid(); })) << "the broker ends by itself";
    fs::remove_all(folder_);
  }
  Child::Options InFolder(const std::vector<std::string>& more = {}) {
    Child::Options options;
    options.environment = {"SOFTGPU_DIR=" + folder_};
    for (const auto& item : more) options.environment.push_back(item);
    return options;
  }
  // Returns the pid of the broker of this directory, or 0.
  pid_t BrokerPid() {
    for (const auto& process : fs::directory_iterator("/proc")) {
      std::string name = process.path().filename();
      if (name.find_first_not_of("0123456789") != name.npos) continue;
      std::error_code gone;
      if (fs::read_symlink(process.path() / "exe", gone).filename() != "softgpu-broker") continue;
      FILE* file = fopen((process.path() / "cmdline").c_str(), "r");
      if (file == nullptr) continue;
      char text[512] = {};
      size_t got = fread(text, 1, sizeof(text) - 1, file);
      fclose(file);
      if (std::string(text, got).find(folder_) != std::string::npos) return std::stoi(name);
    }
    return 0;
  }
  std::string folder_;
};

SOFTGPU_ROLE(say_memory) {
  MUST(cuInit(0));
  CUcontext context;
  int count = 0;
  size_t total = 0;
  MUST(cuDeviceGetCount(&count));
  MUST(cuDeviceTotalMem_v2(&total, 0));
  Say(std::to_string(count) + " x " + std::to_string(total >> 20));
  Hear();
  MUST(cuCtxCreate_v2(&context, 0, 0));
  return 0;
}

TEST_F(BrokerTest, TheFirstProcessSetsTheProperties) {
  Child first("say_memory", {}, InFolder({"SOFTGPU_DEVICES=3", "SOFTGPU_MEMORY=64M"}));
  EXPECT_EQ(first.Hear(), "3 x 64");
  Child second("say_memory", {}, InFolder({"SOFTGPU_DEVICES=1", "SOFTGPU_MEMORY=32M"}));
  EXPECT_EQ(second.Hear(), "3 x 64");
}

TEST_F(BrokerTest, ConcurrentStartsShareOneBroker) {
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 12; ++i)
    children.push_back(
        std::make_unique<Child>("say_memory", std::vector<std::string>{}, InFolder()));
  for (auto& child : children) EXPECT_EQ(child->Hear(), "2 x 256");
  for (auto& child : children) child->Say("");
  for (auto& child : children) EXPECT_EQ(child->Wait(), 0);
}

TEST_F(BrokerTest, InheritsNothingFromItsStarter) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child child("say_memory", {}, [&] {
    Child::Options options = InFolder();
    options.pass_fd = ends[1];
    return options;
  }());
  ASSERT_EQ(child.Hear(), "2 x 256");
  close(ends[1]);
  pid_t broker = BrokerPid();
  ASSERT_GT(broker, 0);
  EXPECT_EQ(getsid(broker), broker) << "the broker has its own session";
  EXPECT_NE(getsid(broker), getsid(child.pid()));
  child.Kill(SIGKILL);
  child.Wait();
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "no other process has the pipe open";
  close(ends[0]);
  EXPECT_EQ(BrokerPid(), broker) << "and it is still there";
}

TEST_F(BrokerTest, NothingIsMounted) {
  Child child("say_memory", {}, InFolder());
  ASSERT_EQ(child.Hear(), "2 x 256");
  for (const char* who : {"/proc/self/mounts", "/proc/1/mounts"}) {
    FILE* file = fopen(who, "r");
    char line[1024];
    while (file != nullptr && fgets(line, sizeof(line), file) != nullptr) {
      EXPECT_EQ(std::string(line).find("softgpu"), std::string::npos) << line;
    }
    if (file != nullptr) fclose(file);
  }
}

SOFTGPU_ROLE(lose_broker) {
  MUST(cuInit(0));
  size_t total = 0;
  MUST(cuDeviceTotalMem_v2(&total, 0));
  Say("ready");
  Hear();
  Say(Name(cuDeviceTotalMem_v2(&total, 0)));
  return 0;
}

TEST_F(BrokerTest, DevicesAreLostWithTheBroker) {
  Child child("lose_broker", {}, InFolder());
  ASSERT_EQ(child.Hear(), "ready");
  kill(BrokerPid(), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !BrokerPid(); }));
  child.Say("");
  EXPECT_EQ(child.Hear(), "CUDA_ERROR_DEVICE_UNAVAILABLE");
}

TEST_F(BrokerTest, InitFailsWithAReasonWithoutABroker) {
  Child::Options options = InFolder({"SOFTGPU_BROKER=/nowhere/softgpu-broker"});
  EXPECT_EQ(Child("list_devices", {}, options).Hear(), "CUDA_ERROR_SYSTEM_NOT_READY");
}

SOFTGPU_ROLE(init_as) {
  const auto user = static_cast<uid_t>(std::stoi(arguments[0]));
  if (setgid(user) != 0 || setuid(user) != 0) return 1;
  Say(Name(cuInit(0)));
  return 0;
}

// These tests run as user ids that are not used otherwise, in a directory that those users can
// reach.
class FolderTest : public ::testing::Test {
 protected:
  static constexpr uid_t kUser = 61234, kOther = 61235;
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "this test takes the rights of root away";
    broker_ = Make("/tmp/softgpu-folder-test", 0, 0755) + "/softgpu-broker";
    fs::copy_file(
        fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "libexec/softgpu-broker",
        broker_);
  }
  void TearDown() override {
    for (const auto& path : made_) fs::remove_all(path);
  }
  std::string Make(const std::string& path, uid_t owner, mode_t mode) {
    fs::remove_all(path);
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0) << path;
    EXPECT_EQ(chown(path.c_str(), owner, owner), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    made_.push_back(path);
    return path;
  }
  // Returns the result of cuInit as kUser. If `folder` is empty, SOFTGPU_DIR is not set.
  std::string Init(const std::string& folder) {
    Child child("init_as", {std::to_string(kUser)},
                {.environment = {"SOFTGPU_DIR=" + folder, "SOFTGPU_BROKER=" + broker_}});
    std::string answer = child.Hear();
    EXPECT_EQ(child.Wait(), 0);
    return answer;
  }
  const std::string standard_ = "/tmp/softgpu-" + std::to_string(kUser);
  std::string broker_;
  std::vector<std::string> made_;
};

TEST_F(FolderTest, ADirectoryOfAnotherUserIsRejected) {
  Make(standard_, kOther, 0777);
  EXPECT_EQ(Init(""), "CUDA_ERROR_SYSTEM_NOT_READY");
  EXPECT_EQ(Init(standard_), "CUDA_ERROR_SYSTEM_NOT_READY") << "nor if it was named";
}

TEST_F(FolderTest, ADirectoryWritableByOthersIsRejected) {
  Make(standard_, kUser, 0777);
  EXPECT_EQ(Init(""), "CUDA_ERROR_SYSTEM_NOT_READY");
}

TEST_F(FolderTest, ALinkIsNotFollowed) {
  const std::string real = Make(standard_ + "-real", kUser, 0700);
  fs::remove_all(standard_);
  fs::create_directory_symlink(real, standard_);
  made_.push_back(standard_);
  EXPECT_EQ(Init(""), "CUDA_ERROR_SYSTEM_NOT_READY");
}

SOFTGPU_ROLE(as_nobody) {
  if (setgid(65534) != 0 || setuid(65534) != 0) return 1;
  CUresult r = cuInit(0);
  Say(Name(r));
  if (r != CUDA_SUCCESS) return 0;
  CUcontext context;
  CUdeviceptr ptr = 0;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  MUST(cuMemAlloc_v2(&ptr, 1 << 20));
  MUST(cuMemsetD8_v2(ptr, 1, 1 << 20));
  MUST(cuCtxSynchronize());
  Say("works");
  return 0;
}

TEST_F(BrokerTest, AnUnprivilegedUserGetsAUserNamespace) {
  if (geteuid() != 0) GTEST_SKIP() << "this test takes the rights of root away";
  bool allowed = system(
                     "setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Ur true "
                     "> /dev/null 2>&1") == 0;
  // An unprivileged user may be unable to reach the test's own directories, including the build
  // tree.
  const std::filesystem::path reachable = "/tmp/softgpu-test-nobody-broker";
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
                       "libexec/softgpu-broker";
  std::filesystem::copy_file(program, reachable, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::permissions(reachable, std::filesystem::perms(0755));
  Child child("as_nobody", {},
              {.environment = {"SOFTGPU_DIR=/tmp/softgpu-test-nobody",
                               "SOFTGPU_BROKER=" + reachable.string()}});
  if (allowed) {
    EXPECT_EQ(child.Hear(), "CUDA_SUCCESS");
    EXPECT_EQ(child.Hear(), "works");
  } else {
    EXPECT_EQ(child.Hear(), "CUDA_ERROR_SYSTEM_NOT_READY") << "refused, and not half done";
  }
  EXPECT_EQ(child.Wait(), 0);
  std::filesystem::remove(reachable);
  fs::remove_all("/tmp/softgpu-test-nobody");
}

}  // namespace
}  // namespace softgpu::test
