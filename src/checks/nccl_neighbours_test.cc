#include "checks/nccl_neighbours.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "gpu_state/testing/world.h"
#include "store/manifest.h"

namespace stasis::checks {
namespace {

using fakes::World;

// A communicator in this process, which is a neighbour of every target.
class Communicator {
 public:
  Communicator() : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = "/tmp/nccl-socket-test-" + std::to_string(::getpid());
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), socklen_t(size)), 0);
  }

 private:
  UniqueFd fd_;
};

store::Manifest ImageOn(const std::string& gpu) {
  store::Manifest manifest;
  manifest.gpus.push_back({gpu, "model", 0, 0});
  store::Process process;
  process.pid = 1000;
  process.recorded_state = store::GpuState::kRunning;
  process.gpu_uuids = {gpu};
  manifest.processes.push_back(process);
  return manifest;
}

// The target to restore is another job; this process is its neighbour and uses a GPU.
class NcclNeighboursTest : public testing::Test {
 protected:
  void SetUp() override { world_.program.At(1).id = process::ReadStat({::getpid()})->id; }
  void TearDown() override { world_.program.At(1).id = sleeper_; }
  Status Check(const std::string& gpu, const device::GpuMap& map = {}) {
    return RefuseNcclNeighbours(world_.services, ImageOn(gpu), map, "hint");
  }
  World world_{1};
  process::ProcessId sleeper_ = world_.program.root();
};

TEST_F(NcclNeighboursTest, WithoutACommunicatorNothingIsRefused) {
  EXPECT_TRUE(Check(fakes::GpuA().value));
}

TEST_F(NcclNeighboursTest, ACommunicatorOnTheSameGpuIsRefused) {
  Communicator neighbour;
  Status refused = Check(fakes::GpuA().value);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
  EXPECT_NE(refused.error().message.find(std::to_string(::getpid())), std::string::npos);
  EXPECT_TRUE(Check(fakes::GpuB().value)) << "on another GPU";
  EXPECT_FALSE(Check(fakes::GpuB().value, {{fakes::GpuB(), fakes::GpuA()}})) << "moved onto it";
  EXPECT_TRUE(Check(fakes::GpuA().value, {{fakes::GpuA(), fakes::GpuB()}})) << "moved away";
}

TEST_F(NcclNeighboursTest, ANeighbourWithoutTheGpuIsHarmless) {
  Communicator neighbour;
  world_.program.At(1).uses_gpu = false;
  EXPECT_TRUE(Check(fakes::GpuA().value));
}

}  // namespace
}  // namespace stasis::checks
