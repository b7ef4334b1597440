#include "process/shared_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "base/install_layout.h"
#include "base/subprocess.h"

namespace stasis::process {
namespace {

TEST(SharedServerTest, AnotherProgramOfThatNameIsNotAServer) {
  char folder[] = "/tmp/shared-server-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string program = std::string(folder) + "/softgpu-broker";
  std::filesystem::copy_file("/bin/sleep", program);
  SpawnOptions options;
  options.argv = {program, "1000"};
  auto child = Subprocess::Spawn(options);
  ASSERT_TRUE(child) << child.error().ToString();
  EXPECT_EQ(ReadStat({child->pid()})->comm, "softgpu-broker");
  EXPECT_FALSE(IsSharedServer({child->pid()}));
  child->Kill(SIGKILL);
  EXPECT_TRUE(child->Wait());
  EXPECT_FALSE(IsSharedServer({child->pid()})) << "the process has ended";
  std::filesystem::remove_all(folder);
}

TEST(SharedServerTest, AMoverIsAServerWhateverItsPath) {
  auto mover = LibexecProgram("stasis-mover");
  ASSERT_TRUE(mover) << mover.error().ToString();
  char folder[] = "/tmp/shared-server-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string other_path = std::string(folder) + "/mover";
  std::filesystem::create_symlink(*mover, other_path);
  // The server waits for requests at descriptor 3.
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd ours(ends[0]), its(ends[1]);
  SpawnOptions options;
  options.argv = {other_path, "--gpu", "GPU-0"};
  options.fds = {{3, its.get()}};
  auto child = Subprocess::Spawn(options);
  ASSERT_TRUE(child) << child.error().ToString();
  EXPECT_TRUE(IsSharedServer({child->pid()}));
  child->Kill(SIGKILL);
  EXPECT_TRUE(child->Wait());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stasis::process
