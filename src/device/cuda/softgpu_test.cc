// Device control on softgpu, with real processes, state transitions and device memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "device/cuda/cuda_control.h"
#include "device/cuda/testing/target.h"

namespace stasis::device::cuda {
namespace {

using process::HostPid;
using std::chrono::milliseconds;
using testing::ScopedEnv;
using testing::Target;

constexpr size_t kBytes = 8u << 20;

Deadline Soon() { return Deadline::In(milliseconds(20000)); }

class SoftgpuTest : public ::testing::Test {
 protected:
  static std::string LibraryDir() { return *InstallRoot() + "/lib/softgpu"; }
  ControlOptions Options() {
    ControlOptions options;
    options.library = LibraryDir() + "/libcuda.so.1";
    options.query_timeout = milliseconds(10000);
    options.settle_timeout = milliseconds(8000);
    return options;
  }
  std::unique_ptr<Target> Start(bool alloc = true) {
    auto target = std::make_unique<Target>(LibraryDir());
    EXPECT_EQ(target->Command("init"), "ok");
    if (alloc) {
      EXPECT_EQ(target->Command("alloc " + std::to_string(kBytes)), "ok");
    }
    return target;
  }
  // Sets softgpu's fault rules for one process, or for all if pid is 0.
  void Fault(pid_t pid, const std::string& rules) {
    std::string name = pid == 0 ? "fault" : "fault." + std::to_string(pid);
    ASSERT_TRUE(WriteFileDurably(dir_.path() + "/" + name, rules));
  }
  Result<std::vector<DeviceProcess>> Find(HostPid pid) {
    STASIS_ASSIGN(auto tree, process::ReadTree(pid));
    return control_.FindProcesses(tree);
  }
  void ExpectState(HostPid pid, ProcessState expected) {
    auto state = control_.State(pid);
    ASSERT_TRUE(state) << state.error().ToString();
    EXPECT_EQ(StateName(*state), StateName(expected));
  }

  testing::TempDir dir_;
  ScopedEnv env_[3] = {
      {"SOFTGPU_DIR", dir_.path().c_str()}, {"SOFTGPU_MEMORY", "128M"}, {"SOFTGPU_DEVICES", "2"}};
  CudaControl control_{Options()};
};

#define EXPECT_DONE(expression)                                 \
  do {                                                          \
    auto done = (expression);                                   \
    EXPECT_TRUE(done) << (done ? "" : done.error().ToString()); \
  } while (0)

TEST_F(SoftgpuTest, DriverAndGpus) {
  auto driver = control_.Driver();
  ASSERT_TRUE(driver) << driver.error().ToString();
  EXPECT_EQ(driver->kind, "softgpu");
  EXPECT_TRUE(driver->can_checkpoint) << driver->why_not;
  auto gpus = control_.Gpus();
  ASSERT_TRUE(gpus) << gpus.error().ToString();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ((*gpus)[0].total_bytes, 128u << 20);
  EXPECT_EQ((*gpus)[0].free_bytes, 128u << 20);
  EXPECT_NE((*gpus)[0].uuid, (*gpus)[1].uuid);
}

TEST_F(SoftgpuTest, ThroughAllStatesAndBack) {
  auto target = Start();
  const HostPid pid = target->pid();
  ExpectState(pid, ProcessState::kRunning);
  const uint64_t used = control_.Gpus()->at(0).free_bytes;
  EXPECT_LE(used, (128u << 20) - kBytes);
  EXPECT_FALSE(control_.DeviceFilesHeld(pid)->empty());

  EXPECT_DONE(control_.Lock(pid, Soon()));
  ExpectState(pid, ProcessState::kLocked);
  EXPECT_DONE(control_.Checkpoint(pid, Soon()));
  ExpectState(pid, ProcessState::kCheckpointed);
  EXPECT_EQ(*control_.DeviceFilesHeld(pid), std::vector<std::string>{});
  EXPECT_EQ(control_.Gpus()->at(0).free_bytes, 128u << 20) << "the GPU must be free";
  target->Send("check");  // blocks at its next driver call until unlocked
  EXPECT_DONE(control_.Restore(pid, {}, Soon()));
  ExpectState(pid, ProcessState::kLocked);
  EXPECT_DONE(control_.Unlock(pid, Soon()));
  ExpectState(pid, ProcessState::kRunning);
  EXPECT_EQ(target->Answer(), "ok");
  EXPECT_EQ(control_.Gpus()->at(0).free_bytes, used);
}

TEST_F(SoftgpuTest, WrongStatesAreNamed) {
  auto target = Start();
  const HostPid pid = target->pid();
  auto expect_wrong = [&](auto status, ProcessState state) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kFailedPrecondition) << status.error().ToString();
    EXPECT_NE(status.error().message.find("CUDA_ERROR_ILLEGAL_STATE"), std::string::npos);
    EXPECT_NE(status.error().message.find("was left " + std::string(StateName(state))),
              std::string::npos)
        << status.error().message;
  };
  expect_wrong(control_.Checkpoint(pid, Soon()), ProcessState::kRunning);
  expect_wrong(control_.Unlock(pid, Soon()), ProcessState::kRunning);
  expect_wrong(control_.Restore(pid, {}, Soon()), ProcessState::kRunning);
  EXPECT_DONE(control_.Lock(pid, Soon()));
  expect_wrong(control_.Lock(pid, Soon()), ProcessState::kLocked);
  EXPECT_DONE(control_.Checkpoint(pid, Soon()));
  expect_wrong(control_.Checkpoint(pid, Soon()), ProcessState::kCheckpointed);
  expect_wrong(control_.Unlock(pid, Soon()), ProcessState::kCheckpointed);
}

TEST_F(SoftgpuTest, FindsUsersInEveryState) {
  auto target = Start();
  const HostPid pid = target->pid();
  auto found = Find(pid);
  ASSERT_TRUE(found) << found.error().ToString();
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().id.pid, pid);
  EXPECT_EQ(found->front().state, ProcessState::kRunning);
  EXPECT_EQ(found->front().gpus, std::vector{control_.Gpus()->at(0).uuid});
  EXPECT_GE(found->front().device_bytes, kBytes);
  EXPECT_DONE(control_.Lock(pid, Soon()));
  EXPECT_DONE(control_.Checkpoint(pid, Soon()));
  found = Find(pid);
  ASSERT_TRUE(found) << found.error().ToString();
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().state, ProcessState::kCheckpointed);
  EXPECT_TRUE(found->front().gpus.empty());
}

TEST_F(SoftgpuTest, ProcessesThatDoNotUseTheDriver) {
  ExpectState({::getpid()}, ProcessState::kNone);
  auto target = std::make_unique<Target>(LibraryDir());  // loaded, but cuInit is never called
  ExpectState(target->pid(), ProcessState::kNone);
  EXPECT_TRUE(Find(target->pid())->empty());
  EXPECT_EQ(control_.Lock(target->pid(), Soon()).error().code, Code::kUnimplemented);
  const HostPid gone = target->pid();
  target.reset();
  EXPECT_EQ(control_.State(gone).error().code, Code::kNotFound);
  EXPECT_EQ(control_.Lock(gone, Soon()).error().code, Code::kNotFound);
}

TEST_F(SoftgpuTest, AForkedChildIsDistinguished) {
  auto target = Start();
  const HostPid child{target->CommandForPid("fork")};
  auto tree = process::ReadTree(target->pid());
  ASSERT_TRUE(tree);
  ASSERT_EQ(tree->members.size(), 2u);
  auto users = control_.FindProcesses(*tree);
  ASSERT_TRUE(users) << users.error().ToString();
  ASSERT_EQ(users->size(), 1u);
  EXPECT_EQ(users->front().id.pid, target->pid());
  auto holders = control_.FindOtherHolders(*tree);
  ASSERT_TRUE(holders) << holders.error().ToString();
  ASSERT_EQ(holders->size(), 1u);
  EXPECT_EQ(holders->front().id.pid, child);
  EXPECT_FALSE(holders->front().files.empty());
}

TEST_F(SoftgpuTest, RestoreThreadIsAThreadOfTheProcess) {
  auto target = Start();
  auto tid = control_.RestoreThread(target->pid());
  ASSERT_TRUE(tid) << tid.error().ToString();
  auto threads = process::ReadThreads(target->pid());
  EXPECT_NE(std::find(threads->begin(), threads->end(), *tid), threads->end());
  EXPECT_EQ(control_.State({*tid}).error().code, Code::kInvalidArgument);
}

TEST_F(SoftgpuTest, ManagedMemoryIsRefusedAndUnlockHeals) {
  auto target = Start();
  const HostPid pid = target->pid();
  EXPECT_EQ(target->Command("managed 4096"), "ok");
  EXPECT_DONE(control_.Lock(pid, Soon()));
  auto refused = control_.Checkpoint(pid, Soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnimplemented) << refused.error().ToString();
  EXPECT_NE(refused.error().message.find("CUDA_ERROR_NOT_SUPPORTED"), std::string::npos);
  EXPECT_NE(refused.error().message.find("was left locked"), std::string::npos);
  EXPECT_NE(refused.error().hint.find("managed memory"), std::string::npos);
  ExpectState(pid, ProcessState::kLocked);
  EXPECT_DONE(control_.Unlock(pid, Soon()));
  EXPECT_EQ(target->Command("check"), "ok");
}

TEST_F(SoftgpuTest, AHungCheckpointKillsItsHelper) {
  auto target = Start();
  const HostPid pid = target->pid();
  EXPECT_DONE(control_.Lock(pid, Soon()));
  const pid_t helper = *control_.helper_pid();
  Fault(0, "cuCheckpointProcessCheckpoint=hang");
  Stopwatch watch;
  auto hung = control_.Checkpoint(pid, Deadline::In(milliseconds(500)));
  EXPECT_LT(watch.Seconds(), 15);
  ASSERT_FALSE(hung);
  EXPECT_EQ(hung.error().code, Code::kDeadlineExceeded) << hung.error().ToString();
  EXPECT_NE(hung.error().message.find("was left locked"), std::string::npos)
      << hung.error().ToString();
  EXPECT_NE(::kill(helper, 0), 0);
  Fault(0, "");
  EXPECT_NE(*control_.helper_pid(), helper);
  EXPECT_DONE(control_.Checkpoint(pid, Soon()));
  EXPECT_DONE(control_.Restore(pid, {}, Soon()));
  EXPECT_DONE(control_.Unlock(pid, Soon()));
  EXPECT_EQ(target->Command("check"), "ok");
}

TEST_F(SoftgpuTest, WorkThatContinuesWithoutItsHelperIsAwaited) {
  auto target = Start();
  const HostPid pid = target->pid();
  EXPECT_DONE(control_.Lock(pid, Soon()));
  Fault(0, "target:cuCheckpointProcessCheckpoint=hang(500)");
  auto late = control_.Checkpoint(pid, Deadline::In(milliseconds(200)));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kDeadlineExceeded);
  EXPECT_NE(late.error().message.find("was left checkpointed"), std::string::npos)
      << late.error().ToString();
  Fault(0, "");
  EXPECT_DONE(control_.Restore(pid, {}, Soon()));
  EXPECT_DONE(control_.Unlock(pid, Soon()));
  EXPECT_EQ(target->Command("check"), "ok");
}

TEST_F(SoftgpuTest, ProcessThatDiesInItsCheckpoint) {
  auto target = Start();
  EXPECT_DONE(control_.Lock(target->pid(), Soon()));
  Fault(0, "target:cuCheckpointProcessCheckpoint=die");
  auto died = control_.Checkpoint(target->pid(), Deadline::In(milliseconds(60000)));
  ASSERT_FALSE(died);
  EXPECT_EQ(died.error().code, Code::kNotFound) << died.error().ToString();
}

TEST_F(SoftgpuTest, LockWaitsForWorkAndHasATimeout) {
  auto target = Start();
  const HostPid pid = target->pid();
  ASSERT_TRUE(control_.Driver());
  const pid_t helper = *control_.helper_pid();
  EXPECT_EQ(target->Command("stall"), "ok");
  auto late = control_.Lock(pid, Deadline::In(milliseconds(2000)));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kDeadlineExceeded) << late.error().ToString();
  EXPECT_NE(late.error().message.find("CUDA_ERROR_NOT_READY"), std::string::npos);
  ExpectState(pid, ProcessState::kRunning);
  EXPECT_EQ(*control_.helper_pid(), helper) << "the driver's own timeout must come first";
  EXPECT_EQ(target->Command("unstall"), "ok");
  EXPECT_DONE(control_.Lock(pid, Soon()));
  EXPECT_DONE(control_.Unlock(pid, Soon()));
  EXPECT_EQ(target->Command("check"), "ok");
}

TEST_F(SoftgpuTest, HelperKilledInTheMiddle) {
  auto target = Start();
  const HostPid pid = target->pid();
  EXPECT_DONE(control_.Lock(pid, Soon()));
  Fault(0, "cuCheckpointProcessCheckpoint=hang");
  std::atomic<bool> ended{false};
  std::thread killer([&] {
    // A helper that is killed before it got the request is replaced, so one kill may not be enough.
    while (!ended) {
      std::this_thread::sleep_for(milliseconds(100));
      if (const auto helper = control_.helper_pid(); !ended && helper && *helper > 0) {
        ::kill(*helper, SIGKILL);
      }
    }
  });
  auto lost = control_.Checkpoint(pid, Soon());
  ended = true;
  killer.join();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::kUnavailable) << lost.error().ToString();
  EXPECT_NE(lost.error().message.find("was left locked"), std::string::npos)
      << lost.error().ToString();
  Fault(0, "");
  EXPECT_DONE(control_.Unlock(pid, Soon()));
  EXPECT_EQ(target->Command("check"), "ok");
}

TEST_F(SoftgpuTest, TwoProcessesInParallel) {
  std::unique_ptr<Target> targets[] = {Start(), Start()};
  std::vector<std::thread> threads;
  for (auto& target : targets) {
    threads.emplace_back([this, pid = target->pid()] {
      for (int i = 0; i < 3; ++i) {
        EXPECT_DONE(control_.Lock(pid, Soon()));
        EXPECT_DONE(control_.Checkpoint(pid, Soon()));
        EXPECT_DONE(control_.Restore(pid, {}, Soon()));
        EXPECT_DONE(control_.Unlock(pid, Soon()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& target : targets) EXPECT_EQ(target->Command("check"), "ok");
}

TEST_F(SoftgpuTest, RestoreOntoTheOtherGpu) {
  auto target = Start();
  const HostPid pid = target->pid();
  auto gpus = control_.Gpus();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_DONE(control_.Lock(pid, Soon()));
  EXPECT_DONE(control_.Checkpoint(pid, Soon()));
  const GpuUuid a = gpus->at(0).uuid, b = gpus->at(1).uuid;
  EXPECT_DONE(control_.Restore(pid, {{a, b}, {b, a}}, Soon()));
  EXPECT_DONE(control_.Unlock(pid, Soon()));
  EXPECT_EQ(target->Command("check"), "ok");
  auto found = Find(pid);
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->at(0).gpus, std::vector{b});
}

TEST_F(SoftgpuTest, RestoreWithoutRoomSaysThatLaterOnesFailToo) {
  auto target = Start();
  EXPECT_DONE(control_.Lock(target->pid(), Soon()));
  EXPECT_DONE(control_.Checkpoint(target->pid(), Soon()));
  auto other = Start(false);
  EXPECT_EQ(other->Command("alloc " + std::to_string(100u << 20)), "ok");
  auto status = control_.Restore(target->pid(), {}, Soon());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kResourceExhausted) << status.error().ToString();
  EXPECT_NE(status.error().hint.find("later restores of this process fail too"), std::string::npos);
}

// Returns the pid of the broker of this folder, or 0. A process that has ended has no executable.
pid_t BrokerOf(const std::string& folder) {
  const auto pids = ListDir("/proc");
  for (const std::string& pid : *pids) {
    const auto program = ReadLink("/proc/" + pid + "/exe");
    const auto line = ReadFile("/proc/" + pid + "/cmdline");
    if (program && program->ends_with("/softgpu-broker") && line &&
        line->find(folder) != std::string::npos) {
      return std::atoi(pid.c_str());
    }
  }
  return 0;
}

TEST_F(SoftgpuTest, AResidentHelperWhoseGpusAreLostIsReplaced) {
  ControlOptions options = Options();
  options.resident_dir = dir_.path() + "/helpers";
  options.idle_timeout = milliseconds(60000);
  pid_t first;
  {
    CudaControl control(options);
    ASSERT_TRUE(control.Gpus());
    first = *control.helper_pid();
  }
  const pid_t broker = BrokerOf(dir_.path());
  ASSERT_GT(broker, 0);
  ::kill(broker, SIGKILL);
  const Deadline limit = Soon();
  while (BrokerOf(dir_.path()) != 0 && !limit.passed()) ::poll(nullptr, 0, 10);
  {
    CudaControl control(options);
    auto gpus = control.Gpus();
    ASSERT_TRUE(gpus) << gpus.error().ToString();
    EXPECT_EQ(gpus->size(), 2u);
    EXPECT_NE(*control.helper_pid(), first);
  }
  EXPECT_TRUE(DismissHelpers(options.resident_dir, Soon()));
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace
}  // namespace stasis::device::cuda
