// Device control with a fake driver that can be made to fail in any way. softgpu_test.cc tests the
// normal cases.
#include "device/cuda/cuda_control.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "base/fd.h"
#include "device/cuda/testing/target.h"
#include "ipc/socket.h"

namespace stasis::device::cuda {
namespace {

using process::HostPid;
using std::chrono::milliseconds;
using testing::ScopedEnv;
using testing::Target;
using testing::TestFile;

Deadline Soon() { return Deadline::In(milliseconds(10000)); }

class CudaControlTest : public ::testing::Test {
 protected:
  ControlOptions Options(const std::string& driver = "fake_driver") {
    ControlOptions options;
    options.library = TestFile(driver + "/libcuda.so.1");
    options.query_timeout = milliseconds(5000);
    options.settle_timeout = milliseconds(4000);
    return options;
  }
  std::unique_ptr<Target> Start(bool init = true) {
    auto target = std::make_unique<Target>(TestFile("fake_driver"));
    if (init) {
      EXPECT_EQ(target->Command("init"), "ok");
    }
    return target;
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileDurably(dir_.path() + "/" + name, text));
  }
  void Fault(const std::string& function, HostPid pid, const std::string& what) {
    Write("fault." + function + "." + process::ToString(pid), what);
  }
  void TearDown() override { EXPECT_EQ(testing::CountChildren("stasis-device-helper"), 0); }

  testing::TempDir dir_;
  ScopedEnv env_{"STASIS_FAKE_DRIVER", dir_.path().c_str()};
};

TEST_F(CudaControlTest, NoDriverAtAll) {
  ControlOptions options = Options();
  options.library = dir_.path() + "/libcuda.so.1";
  CudaControl control(options);
  auto driver = control.Driver();
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, Code::kUnimplemented);
  EXPECT_NE(driver.error().message.find("no CUDA driver is installed"), std::string::npos)
      << driver.error().message;
  EXPECT_EQ(control.Gpus().error().code, Code::kUnimplemented);
  // A process that does not use the driver is reported as such even without a driver.
  EXPECT_EQ(*control.State({::getpid()}), ProcessState::kNone);
  EXPECT_TRUE(control.FindProcesses(*process::ReadTree({::getpid()}))->empty());
  // A process that uses a driver that cannot be opened here is reported as an error and not
  // skipped.
  auto target = Start();
  auto found = control.FindProcesses(*process::ReadTree(target->pid()));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kUnimplemented);
  EXPECT_NE(found.error().hint.find("fake_driver/libcuda.so.1"), std::string::npos);
}

TEST_F(CudaControlTest, LibraryThatIsNoDriver) {
  ControlOptions options = Options();
  options.library = TestFile("not_a_driver/libcuda.so.1");
  CudaControl control(options);
  EXPECT_EQ(control.Driver().error().code, Code::kUnimplemented);
}

TEST_F(CudaControlTest, DriverOlderThanTheCheckpointInterface) {
  CudaControl control(Options("fake_old_driver"));
  auto driver = control.Driver();
  ASSERT_TRUE(driver) << driver.error().ToString();
  EXPECT_FALSE(driver->can_checkpoint);
  EXPECT_NE(driver->why_not.find("came with driver 570"), std::string::npos) << driver->why_not;
  EXPECT_EQ(control.Gpus()->size(), 2u);  // the GPUs remain visible
  auto target = Start();
  auto status = control.Lock(target->pid(), Soon());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kUnimplemented);
}

TEST_F(CudaControlTest, DriverThatDoesNotStart) {
  Write("fault.cuInit", "100");
  CudaControl control(Options());
  auto driver = control.Driver();
  ASSERT_TRUE(driver) << driver.error().ToString();
  EXPECT_FALSE(driver->can_checkpoint);
  EXPECT_NE(driver->why_not.find("CUDA_ERROR_NO_DEVICE: no CUDA-capable device"), std::string::npos)
      << driver->why_not;
  EXPECT_EQ(control.Gpus().error().code, Code::kUnimplemented);
}

TEST_F(CudaControlTest, GpusAreListed) {
  CudaControl control(Options());
  auto gpus = control.Gpus();
  ASSERT_TRUE(gpus) << gpus.error().ToString();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ((*gpus)[1].uuid.value, "GPU-f0f0f0f0-f0f0-f0f0-f0f0-f0f0f0f0f001");
  EXPECT_EQ((*gpus)[1].index, 1);
  EXPECT_EQ((*gpus)[1].name, "Fake GPU");
  EXPECT_EQ((*gpus)[1].total_bytes, 8ull << 30);
  EXPECT_EQ((*gpus)[1].free_bytes, 6ull << 30);
}

TEST_F(CudaControlTest, WrongPids) {
  CudaControl control(Options());
  auto target = Start();
  const pid_t thread = target->CommandForPid("thread");
  struct Case {
    pid_t pid;
    Code code;
  };
  for (const Case& c : {Case{0, Code::kInvalidArgument}, Case{-1, Code::kInvalidArgument},
                        Case{0x3fffffff, Code::kNotFound}, Case{thread, Code::kInvalidArgument}}) {
    EXPECT_EQ(control.State({c.pid}).error().code, c.code) << c.pid;
    EXPECT_EQ(control.Lock({c.pid}, Soon()).error().code, c.code) << c.pid;
    EXPECT_EQ(control.RestoreThread({c.pid}).error().code, c.code) << c.pid;
  }
  EXPECT_NE(control.State({thread}).error().message.find(process::ToString(target->pid())),
            std::string::npos);
  target->KillOnly();  // a zombie
  EXPECT_EQ(control.State(target->pid()).error().code, Code::kNotFound);
}

TEST_F(CudaControlTest, LibraryLoadedButNeverInitialised) {
  CudaControl control(Options());
  auto target = Start(false);
  EXPECT_EQ(*control.State(target->pid()), ProcessState::kNone);
  EXPECT_TRUE(control.FindProcesses(*process::ReadTree(target->pid()))->empty());
  auto status = control.Lock(target->pid(), Soon());
  EXPECT_EQ(status.error().code, Code::kUnimplemented);
  EXPECT_NE(status.error().message.find("does not use the CUDA driver"), std::string::npos);
}

TEST_F(CudaControlTest, AHungCheckpointIsKilledAndTheStateNamed) {
  CudaControl control(Options());
  auto target = Start();
  ASSERT_TRUE(control.Lock(target->pid(), Soon()));
  Fault("Checkpoint", target->pid(), "hang");
  const pid_t helper = *control.helper_pid();
  Stopwatch watch;
  auto status = control.Checkpoint(target->pid(), Deadline::In(milliseconds(300)));
  EXPECT_LT(watch.Seconds(), 15);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kDeadlineExceeded);
  EXPECT_NE(status.error().message.find("was left locked"), std::string::npos)
      << status.error().ToString();
  EXPECT_NE(*control.helper_pid(), helper);
  ASSERT_TRUE(control.Unlock(target->pid(), Soon()));
  EXPECT_EQ(*control.State(target->pid()), ProcessState::kRunning);
}

TEST_F(CudaControlTest, AnOperationThatContinuesInTheTargetIsAwaited) {
  CudaControl control(Options());
  auto target = Start();
  ASSERT_TRUE(control.Lock(target->pid(), Soon()));
  Fault("Checkpoint", target->pid(), "hang");
  UniqueFd helper(static_cast<int>(::syscall(SYS_pidfd_open, *control.helper_pid(), 0)));
  ASSERT_TRUE(helper);
  std::thread driver([&] {
    // Simulates the driver's thread in the target, which continues after the helper has exited.
    EXPECT_TRUE(ipc::AwaitReadable(helper.get(), Soon()));
    Write(process::ToString(target->pid()), "2");
  });
  auto status = control.Checkpoint(target->pid(), Deadline::In(milliseconds(300)));
  driver.join();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("was left checkpointed"), std::string::npos)
      << status.error().ToString();
}

TEST_F(CudaControlTest, AnUnreadableStateIsReported) {
  CudaControl control(Options());
  auto target = Start();
  ASSERT_TRUE(control.Lock(target->pid(), Soon()));
  Fault("Checkpoint", target->pid(), "die");
  Fault("GetState", target->pid(), "hang");
  auto status = control.Checkpoint(target->pid(), Soon());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kUnavailable);
  EXPECT_NE(status.error().message.find("is in an unknown state"), std::string::npos)
      << status.error().ToString();
}

TEST_F(CudaControlTest, TheProcessEndsInTheMiddle) {
  CudaControl control(Options());
  auto target = Start();
  ASSERT_TRUE(control.Lock(target->pid(), Soon()));
  Fault("Checkpoint", target->pid(), "hang");
  std::thread killer([&] { target->KillOnly(); });
  auto status = control.Checkpoint(target->pid(), Deadline::In(milliseconds(300)));
  killer.join();
  ASSERT_FALSE(status);
  EXPECT_TRUE(status.error().code == Code::kNotFound ||
              status.error().message.find("has ended") != std::string::npos)
      << status.error().ToString();
}

TEST_F(CudaControlTest, ErrorsOfTheDriverKeepItsWords) {
  struct Case {
    const char* function;
    const char* number;
    Code code;
    const char* words;
    const char* hint;
  };
  for (const Case& c :
       {Case{"Checkpoint", "801", Code::kUnimplemented,
             "CUDA_ERROR_NOT_SUPPORTED: operation not supported", "managed memory"},
        Case{"Checkpoint", "2", Code::kResourceExhausted, "CUDA_ERROR_OUT_OF_MEMORY",
             "control group"},
        Case{"Checkpoint", "800", Code::kPermissionDenied, "CUDA_ERROR_NOT_PERMITTED", ""},
        Case{"Checkpoint", "777", Code::kUnknown, "CUresult 777", ""}}) {
    CudaControl control(Options());
    auto target = Start();
    ASSERT_TRUE(control.Lock(target->pid(), Soon()));
    Fault(c.function, target->pid(), c.number);
    auto status = control.Checkpoint(target->pid(), Soon());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, c.code) << c.number;
    EXPECT_EQ(status.error().domain, Domain::kCuda);
    EXPECT_EQ(status.error().raw, std::atoi(c.number));
    EXPECT_NE(status.error().message.find(c.words), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("was left locked"), std::string::npos);
    EXPECT_NE(status.error().hint.find(c.hint), std::string::npos) << status.error().hint;
  }
}

TEST_F(CudaControlTest, GpuMapsAreChecked) {
  CudaControl control(Options());
  auto target = Start();
  auto status = control.Restore(target->pid(), {{{"GPU-1"}, {"GPU-2"}}}, Soon());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace stasis::device::cuda
