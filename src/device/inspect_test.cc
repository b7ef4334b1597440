#include "device/inspect.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.h"
#include "base/subprocess.h"

namespace stasis::device {
namespace {

TEST(InspectTest, AProcessThatSharesNothingHasNoFindings) {
  auto findings = Inspect({::getpid()});
  ASSERT_TRUE(findings) << findings.error().ToString();
  EXPECT_TRUE(findings->empty());
  EXPECT_FALSE(Inspect({0x3fffffff}));
}

UniqueFd NcclSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract socket name as NCCL uses it, with a leading zero byte.
  std::string name = "/tmp/nccl-socket-0-test" + std::to_string(::getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  return fd;
}

TEST(InspectTest, ACommunicatorIsSeenByItsSocket) {
  UniqueFd fd = NcclSocket();
  auto findings = Inspect({::getpid()});
  ASSERT_TRUE(findings);
  ASSERT_EQ(findings->size(), 1u);
  EXPECT_TRUE(findings->front().fatal);
  EXPECT_NE(findings->front().evidence.find("@/tmp/nccl-socket-0-test"), std::string::npos);
}

TEST(InspectTest, ACommunicatorIsSeenByItsSharedMemory) {
  std::string path = "/dev/shm/nccl-test" + std::to_string(::getpid());
  UniqueFd fd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(fd);
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  void* mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
  fd.Reset();
  ::unlink(path.c_str());  // NCCL does this too
  auto findings = Inspect({::getpid()});
  ::munmap(mapped, 4096);
  ASSERT_TRUE(findings);
  ASSERT_EQ(findings->size(), 1u);
  EXPECT_NE(findings->front().evidence.find("a mapping is /dev/shm/nccl-test"), std::string::npos);
}

TEST(InspectTest, TheSettingsThatWorkAreNotRefused) {
  UniqueFd fd = NcclSocket();
  auto child = Subprocess::Spawn({.argv = {"/bin/sleep", "1000"},
                                  .env = {{"NCCL_P2P_DISABLE=1", "NCCL_CUMEM_ENABLE=0"}},
                                  .fds = {{5, fd.get()}}});
  ASSERT_TRUE(child);
  auto findings = Inspect({child->pid()});
  child->Kill(SIGKILL);
  EXPECT_TRUE(child->Wait());
  ASSERT_TRUE(findings) << findings.error().ToString();
  ASSERT_EQ(findings->size(), 1u);
  EXPECT_FALSE(findings->front().fatal);
}

}  // namespace
}  // namespace stasis::device
