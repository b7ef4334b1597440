#include "device/hip/hip_driver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/install_layout.h"
#include "device/cuda/cuda_control.h"
#include "device/cuda/testing/target.h"

namespace stasis::device::hip {
namespace {

TEST(HipDriverTest, PathsAreRecognised) {
  EXPECT_TRUE(IsRuntimeLibrary("/opt/rocm/lib/libamdhip64.so.6.4.60400 (deleted)"));
  EXPECT_FALSE(IsRuntimeLibrary("/usr/lib/libcuda.so.1"));
  EXPECT_TRUE(IsRenderNode("/dev/dri/renderD128"));
  EXPECT_FALSE(IsRenderNode("/dev/dri/card0"));
}

TEST(HipDriverTest, AStepSaysWhatThereIsInstead) {
  const Error error = NoSuchStep("checkpoint", 12);
  EXPECT_EQ(error.code, Code::kUnimplemented);
  EXPECT_EQ(error.message, "process 12 uses HIP, whose driver has no checkpoint of a process");
  EXPECT_NE(error.hint.find("stasis suspend"), std::string::npos);
}

// The device helper with HIP's library in place of libcuda.
TEST(HipDriverTest, ServesAsTheDriver) {
  cuda::testing::TempDir dir;
  cuda::testing::ScopedEnv folder("SOFTGPU_DIR", dir.path().c_str()),
      memory("SOFTGPU_MEMORY", "128M"), devices("SOFTGPU_DEVICES", "2");
  ControlOptions options;
  options.library = *InstallRoot() + "/lib/softgpu/libamdhip64.so.6";
  cuda::CudaControl control(options);
  auto driver = control.Driver();
  ASSERT_TRUE(driver) << driver.error().ToString();
  EXPECT_EQ(driver->kind, "softgpu-hip");
  EXPECT_FALSE(driver->can_checkpoint);
  EXPECT_EQ(driver->why_not, kNoCheckpoint);
  auto gpus = control.Gpus();
  ASSERT_TRUE(gpus) << gpus.error().ToString();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ((*gpus)[1].total_bytes, 128ull << 20);
  EXPECT_NE((*gpus)[0].uuid, (*gpus)[1].uuid);
}

// A parent without a GPU may load the library for its children.
TEST(HipDriverTest, AProcessThatHasOnlyLoadedTheLibraryUsesNoGpu) {
  cuda::testing::TempDir dir;
  cuda::testing::ScopedEnv folder("SOFTGPU_DIR", dir.path().c_str());
  ControlOptions options;
  options.library = *InstallRoot() + "/lib/softgpu/libamdhip64.so.6";
  void* library = ::dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  cuda::CudaControl control(options);
  auto state = control.State({::getpid()});
  ASSERT_TRUE(state) << state.error().ToString();
  EXPECT_EQ(*state, ProcessState::kNone);
  ::dlclose(library);
}

}  // namespace
}  // namespace stasis::device::hip
