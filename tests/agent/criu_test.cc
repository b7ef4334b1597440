// Dumps, kills and restores a suspended program: the agent's socket must exist afterwards.

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <fstream>

#include "stand.h"

extern char** environ;

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

std::string FindCriu() {
  const char* named = getenv("STASIS_CRIU");
  if (named != nullptr) return named;
  std::string built = CRIU_BUILT;
  if (access(built.c_str(), X_OK) == 0) return built;
  return system("command -v criu > /dev/null") == 0 ? "criu" : "";
}

// Starts a workload like a background program: in its own session, with files as its only
// descriptors.
pid_t StartWorkload(const std::string& output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  // A test runner may leak the descriptor of its log to the program. CRIU would reject the restore
  // because the log grows.
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::string program = WORKLOADS "/vector", memory = "50M", interval = "20";
  char rounds[] = "--memory", every[] = "--interval";
  char* argv[] = {program.data(), rounds, memory.data(), every, interval.data(), nullptr};
  std::string preload = std::string("LD_PRELOAD=") + AGENT_LIBRARY;
  std::vector<char*> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.push_back(*e);
  environment.push_back(preload.data());
  environment.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, environment.data()), 0);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

size_t Lines(const std::string& path) {
  std::ifstream file(path);
  size_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

bool GrowsBeyond(const std::string& path, size_t lines) {
  for (int i = 0; i < 6000; ++i) {
    if (Lines(path) > lines) return true;
    usleep(10000);
  }
  return false;
}

TEST(Criu, TheControlSocketSurvivesADumpAndRestore) {
  std::string criu = FindCriu();
  if (criu.empty() || geteuid() != 0) GTEST_SKIP() << "needs CRIU and root";
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  UseGpu();
  char folder_name[] = "/tmp/stasis-agent-criu-XXXXXX";
  std::string folder = mkdtemp(folder_name);
  std::string output = folder + "/output";
  pid_t pid = StartWorkload(output);
  ASSERT_TRUE(GrowsBeyond(output, 3));
  for (int round = 0; round < 2; ++round) {
    std::string images = folder + "/" + std::to_string(round);
    ASSERT_EQ(system(("mkdir " + images).c_str()), 0);
    agent_client::Export taken;
    {
      auto client = agent_client::AgentClient::Find({pid}, kLong);
      ASSERT_DONE(client);
      ASSERT_GE(client->hello().range_bytes, 50u << 20);
      ASSERT_DONE(client->Close(kLong));
      auto all = client->ExportAll(kLong);
      ASSERT_DONE(all);
      taken = std::move(*all);
      ASSERT_DONE(client->Release(kNot, kLong));
    }
    auto bytes = TakeAway(&taken);
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 10000;
    ASSERT_EQ(cuCheckpointProcessLock(pid, &lock), CUDA_SUCCESS);
    ASSERT_EQ(cuCheckpointProcessCheckpoint(pid, nullptr), CUDA_SUCCESS);
    std::string common = " -D " + images + " -v2 ";
    ASSERT_EQ(system((criu + " dump -t " + std::to_string(pid) + common + "-o dump.log").c_str()),
              0)
        << images;
    waitpid(pid, nullptr, 0);
    ASSERT_EQ(system((criu + " restore -d" + common + "-o restore.log").c_str()), 0) << images;
    auto fds = PutBack(taken, bytes);
    ASSERT_EQ(cuCheckpointProcessRestore(pid, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuCheckpointProcessUnlock(pid, nullptr), CUDA_SUCCESS);
    size_t lines = Lines(output);
    auto client = agent_client::AgentClient::Find({pid}, kLong);
    ASSERT_DONE(client);
    EXPECT_EQ(client->hello().state, agent_protocol::State::kReleased);
    ASSERT_DONE(client->Map(taken.ranges, Numbers(fds), kLong));
    ASSERT_DONE(client->Open(kLong));
    EXPECT_TRUE(GrowsBeyond(output, lines + 3));
  }
  kill(pid, SIGTERM);
  waitpid(pid, nullptr, 0);
  std::ifstream file(output);
  std::string line, last;
  while (std::getline(file, line)) last = line;
  EXPECT_EQ(last, "EXIT-SUCCESS") << "the program itself compares all its memory";
  EXPECT_EQ(system(("rm -rf " + folder).c_str()), 0);
}

}  // namespace
}  // namespace stasis::agent_test
