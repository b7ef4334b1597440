// Dumps and restores a program on a software GPU with the real CRIU: $STASIS_CRIU, or the one
// beside the tests.

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "testing.h"

#if !SOFTGPU_SANITIZED  // CRIU cannot dump a sanitizer's shadow memory

namespace softgpu::test {
namespace {

namespace fs = std::filesystem;

std::string Criu() {
  if (const char* set = getenv("STASIS_CRIU")) return set;
  char self[PATH_MAX];
  if (realpath("/proc/self/exe", self) == nullptr) return "";
  fs::path beside = fs::path(self).parent_path().parent_path() / "libexec" / "criu";
  return fs::exists(beside) ? beside.string() : "";
}

// Returns the reason why this machine cannot run CRIU, or an empty string.
std::string WhyNot() {
  if (Criu().empty()) return "no CRIU: neither STASIS_CRIU nor libexec/criu";
  std::string check = Criu() + " check > /dev/null 2>&1";
  if (geteuid() != 0) return "CRIU needs to be root";
  return system(check.c_str()) == 0 ? "" : Criu() + " check fails";
}

std::string ReadFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CriuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not = WhyNot();
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    char folder[] = "/tmp/softgpu-criu-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    fs::create_directory(folder_ / "image");
    fs::create_directory(folder_ / "no-plugins");
    // Restored programs become children of this process, which reaps them so that their pids are
    // free for the next restore.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ASSERT_OK(cuInit(0));
  }
  void TearDown() override {
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  // Starts a counter in its own session, with files instead of pipes.
  pid_t StartCounter() {
    fs::path in = folder_ / "in", out = folder_ / "out";
    std::ofstream(in) << "";
    std::ofstream(out) << "";
    pid_t pid = fork();
    if (pid == 0) {
      setsid();
      int from = open(in.c_str(), O_RDONLY), to = open(out.c_str(), O_WRONLY | O_APPEND);
      int null = open("/dev/null", O_RDWR);
      dup2(from, 0);
      dup2(to, 1);
      dup2(null, 2);
      close_range(3, ~0U, 0);
      execl("/proc/self/exe", "softgpu_test", "--role", "counter", nullptr);
      _exit(127);
    }
    EXPECT_TRUE(Eventually([&] { return ReadFile(out).starts_with("ready"); }));
    return pid;
  }

  void Tick() { std::ofstream(folder_ / "in", std::ios::app) << "go" << std::endl; }
  bool Says(const std::string& line) {
    bool said = Eventually(
        [&] { return ReadFile(folder_ / "out").find(line + "\n") != std::string::npos; });
    EXPECT_TRUE(said) << ReadFile(folder_ / "out");
    return said;
  }

  int Run(const std::string& what, const std::string& options) {
    std::string command = "CRIU_LIBS_DIR=" + (folder_ / "no-plugins").string() + " timeout 60 " +
                          Criu() + " " + what + " -D " + (folder_ / "image").string() + " -o " +
                          what + ".log -v4 " + options + " > /dev/null 2>&1";
    int status = system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string Log(const std::string& what) { return ReadFile(folder_ / "image" / (what + ".log")); }

  fs::path folder_;
};

SOFTGPU_ROLE(counter) {
  MUST(cuInit(0));
  CUcontext context;
  CUmodule module;
  CUfunction bump;
  CUdeviceptr out = 0, bulk = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  MUST(cuModuleLoad(&module, ExampleImage().c_str()));
  MUST(cuModuleGetFunction(&bump, module, "bump"));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, 0));
  MUST(cuMemAlloc_v2(&out, 4));
  MUST(cuMemAlloc_v2(&bulk, 16 << 20));
  MUST(cuMemsetD32_v2(bulk, 0xABCD, 4 << 20));
  MUST(cuCtxSynchronize());
  Say("ready");
  std::string line;
  for (char c;;) {
    ssize_t got = read(0, &c, 1);
    if (got == 0) usleep(2000);  // wait for the file to grow
    if (got <= 0 || c != '\n') continue;
    void* params[] = {&out};
    int value = 0, last = 0;
    MUST(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
    MUST(cuEventRecord(event, stream));
    MUST(cuEventSynchronize(event));
    MUST(cuMemcpyDtoH_v2(&value, out, 4));
    MUST(cuMemcpyDtoH_v2(&last, bulk + (16 << 20) - 4, 4));
    Say(std::to_string(value) + (last == 0xABCD ? "" : " but the bulk is lost"));
  }
}

TEST_F(CriuTest, ARunningProgramCannotBeDumped) {
  pid_t pid = StartCounter();
  EXPECT_NE(Run("dump", "-t " + std::to_string(pid)), 0);
  EXPECT_EQ(kill(pid, 0), 0);
  Tick();
  EXPECT_TRUE(Says("101"));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(CriuTest, ACheckpointedProgramIsDumpedKilledAndRestored) {
  pid_t pid = StartCounter();
  Tick();
  ASSERT_TRUE(Says("101"));
  int expected = 102;
  // Dumps and restores the counter twice, because a restored program must be dumpable again.
  for (int round = 0; round < 2; ++round) {
    int before = 0, after = 0;
    ASSERT_OK(cuCheckpointProcessGetRestoreThreadId(pid, &before));
    ASSERT_OK(cuCheckpointProcessLock(pid, nullptr));
    Tick();  // requested while it is suspended
    ASSERT_OK(cuCheckpointProcessCheckpoint(pid, nullptr));
    ASSERT_EQ(DeviceFiles(pid), 0);
    ASSERT_EQ(Run("dump", "-t " + std::to_string(pid)), 0) << Log("dump");
    waitpid(pid, nullptr, 0);
    ASSERT_NE(kill(pid, 0), 0);
    ASSERT_EQ(Run("restore", "-d"), 0) << Log("restore");
    CUprocessState state{};
    ASSERT_OK(cuCheckpointProcessGetState(pid, &state));
    EXPECT_EQ(state, CU_PROCESS_STATE_CHECKPOINTED);
    ASSERT_OK(cuCheckpointProcessGetRestoreThreadId(pid, &after));
    EXPECT_EQ(before, after);
    ASSERT_OK(cuCheckpointProcessRestore(pid, nullptr));
    EXPECT_GT(DeviceFiles(pid), 0);
    ASSERT_OK(cuCheckpointProcessUnlock(pid, nullptr));
    EXPECT_TRUE(Says(std::to_string(expected++)));
    Tick();
    EXPECT_TRUE(Says(std::to_string(expected++)));
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace softgpu::test

#endif
