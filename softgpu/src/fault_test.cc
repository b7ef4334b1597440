#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "testing.h"

namespace softgpu::test {
namespace {

SOFTGPU_ROLE(allocate) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  Say("ready");
  while (!Hear().empty()) {
    CUdeviceptr ptr = 0;
    CUresult r = cuMemAlloc_v2(&ptr, 4096);
    Say(Name(r));
  }
  return 0;
}

class FaultTest : public WithContext {
 protected:
  static std::string Directory() { return getenv("SOFTGPU_DIR"); }
  static void Tell(const std::string& file, const std::string& spec) {
    std::ofstream(Directory() + "/" + file) << spec;
  }
  void TearDown() override {
    WithContext::TearDown();
    Tell("fault", "");
    unlink((Directory() + "/fault").c_str());
  }
};

TEST_F(FaultTest, TheNthCallFails) {
  Child child("allocate", {},
              {.environment = {"SOFTGPU_FAULT=cuMemAlloc_v2:2=fail(2),cuMemAlloc_v2:3=fail"}});
  ASSERT_EQ(child.Hear(), "ready");
  EXPECT_EQ(child.Ask("go"), "CUDA_SUCCESS");
  EXPECT_EQ(child.Ask("go"), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(child.Ask("go"), "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(child.Ask("go"), "CUDA_SUCCESS");
}

// Two streams use the same memory without order: an intentional race.
#ifndef __SANITIZE_THREAD__
TEST_F(FaultTest, WorkCanBeDelayedInStreamOrder) {
  constexpr size_t kBytes = 4096;
  CUdeviceptr memory = 0;
  ASSERT_OK(cuMemAlloc_v2(&memory, kBytes));
  ASSERT_OK(cuMemsetD8_v2(memory, 1, kBytes));
  ASSERT_OK(cuCtxSynchronize());
  CUstream other = nullptr, own = nullptr;
  ASSERT_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  void* found = nullptr;
  ASSERT_OK(cuMemHostAlloc(&found, kBytes, 0));
  auto first_byte = [&](CUstream stream) {
    MUST(cuMemcpyDtoHAsync_v2(found, memory, kBytes, stream));
    MUST(cuStreamSynchronize(stream));
    return *static_cast<char*>(found);
  };
  std::string pageable(kBytes, 2);
  const std::string mine = "fault." + std::to_string(getpid());
  Tell(mine, "cuMemcpyHtoDAsync_v2=late(300),cuMemcpyHtoD_v2=late(300)");
  ASSERT_OK(cuMemcpyHtoDAsync_v2(memory, pageable.data(), kBytes, own));
  pageable.assign(kBytes, 9);
  EXPECT_EQ(first_byte(other), 1);
  EXPECT_EQ(first_byte(own), 2);
  // The copy without a stream also returns before the data has arrived, and a non-blocking stream
  // does not wait for it.
  pageable.assign(kBytes, 3);
  ASSERT_OK(cuMemcpyHtoD_v2(memory, pageable.data(), kBytes));
  EXPECT_EQ(first_byte(other), 2);
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(first_byte(other), 3);
  Tell(mine, "");
  unlink((Directory() + "/" + mine).c_str());
}
#endif

TEST_F(FaultTest, TheProcessCanDie) {
  Child child("allocate", {}, {.environment = {"SOFTGPU_FAULT=cuMemAlloc_v2=die"}});
  ASSERT_EQ(child.Hear(), "ready");
  child.Say("go");
  EXPECT_EQ(child.Wait(), -SIGKILL);
}

TEST_F(FaultTest, AFileChangesTheRulesOfARunningProcess) {
  Child one("allocate"), other("allocate");
  ASSERT_EQ(one.Hear(), "ready");
  ASSERT_EQ(other.Hear(), "ready");
  Tell("fault." + std::to_string(one.pid()), "cuMemAlloc_v2=fail(1)");
  EXPECT_EQ(one.Ask("go"), "CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(one.Ask("go"), "CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(other.Ask("go"), "CUDA_SUCCESS");
  Tell("fault." + std::to_string(one.pid()), "");
  EXPECT_EQ(one.Ask("go"), "CUDA_SUCCESS");
  Tell("fault", "cuMemAlloc_v2:1=fail(3)");
  EXPECT_EQ(one.Ask("go"), "CUDA_ERROR_NOT_INITIALIZED");
  EXPECT_EQ(other.Ask("go"), "CUDA_ERROR_NOT_INITIALIZED");
  EXPECT_EQ(other.Ask("go"), "CUDA_SUCCESS");
}

TEST_F(FaultTest, ACheckpointCallFailsInTargetOrCaller) {
  Child target("allocate", {},
               {.environment = {"SOFTGPU_FAULT=target:cuCheckpointProcessCheckpoint:1=fail(2),"
                                "target:cuCheckpointProcessRestore:2=die"}});
  ASSERT_EQ(target.Hear(), "ready");
  CUprocessState state{};
  ASSERT_OK(cuCheckpointProcessLock(target.pid(), nullptr));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuCheckpointProcessCheckpoint(target.pid(), nullptr));
  EXPECT_OK(cuCheckpointProcessGetState(target.pid(), &state));
  EXPECT_EQ(state, CU_PROCESS_STATE_LOCKED);
  Tell("fault", "cuCheckpointProcessCheckpoint:1=fail(801)");
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessCheckpoint(target.pid(), nullptr));
  Tell("fault", "");
  ASSERT_OK(cuCheckpointProcessCheckpoint(target.pid(), nullptr));
}

SOFTGPU_ROLE(checkpointer) {
  MUST(cuInit(0));
  Say("ready");
  Hear();
  Say(Name(cuCheckpointProcessCheckpoint(std::stoi(arguments[0]), nullptr)));
  return 0;
}

TEST_F(FaultTest, AHungCallerCanBeKilledAndTheTargetServesTheNext) {
  Child target("allocate");
  ASSERT_EQ(target.Hear(), "ready");
  ASSERT_OK(cuCheckpointProcessLock(target.pid(), nullptr));
  Child hanging("checkpointer", {std::to_string(target.pid())},
                {.environment = {"SOFTGPU_FAULT=cuCheckpointProcessCheckpoint=hang"}});
  ASSERT_EQ(hanging.Hear(), "ready");
  hanging.Say("go");
  hanging.Kill(SIGKILL);
  EXPECT_EQ(hanging.Wait(), -SIGKILL);
  // Kill a client between its request and the answer.
  Tell("fault." + std::to_string(target.pid()), "target:cuCheckpointProcessCheckpoint=hang(2000)");
  Child asked("checkpointer", {std::to_string(target.pid())});
  ASSERT_EQ(asked.Hear(), "ready");
  asked.Say("go");
  usleep(1000000);  // there is no way to see that the request was sent
  asked.Kill(SIGKILL);
  asked.Wait();
  CUprocessState state{};
  EXPECT_TRUE(Eventually([&] {
    return cuCheckpointProcessGetState(target.pid(), &state) == CUDA_SUCCESS &&
           state == CU_PROCESS_STATE_CHECKPOINTED;
  }));
  ASSERT_OK(cuCheckpointProcessRestore(target.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessUnlock(target.pid(), nullptr));
  EXPECT_EQ(target.Ask("go"), "CUDA_SUCCESS");
}

}  // namespace
}  // namespace softgpu::test
