#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "testing.h"

namespace softgpu::test {
namespace {

// The target of most tests: a program with every kind of memory that a checkpoint saves. For each
// input line it works on all of its memory and prints the sum.
struct Program {
  CUdeviceptr plain = 0, mapped = 0, pool = 0;
  void* pinned = nullptr;
  CUmodule module = nullptr;
  CUfunction add_one = nullptr, bump = nullptr;
  CUstream stream = nullptr;

  void Make(size_t plain_bytes) {
    MUST(cuMemAlloc_v2(&plain, plain_bytes));
    MUST(cuMemsetD32_v2(plain, 10, plain_bytes / 4));
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, 2 * kMiB, &prop, 0));
    MUST(cuMemAddressReserve(&mapped, 2 * kMiB, 0, 0, 0));
    MUST(cuMemMap(mapped, 2 * kMiB, 0, handle, 0));
    MUST(cuMemSetAccess(mapped, 2 * kMiB, &access, 1));
    MUST(cuMemsetD32_v2(mapped, 20, 2 * kMiB / 4));
    MUST(cuMemAllocAsync(&pool, 4096, nullptr));
    MUST(cuMemsetD32_v2(pool, 30, 1024));
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    MUST(cuModuleLoad(&module, ExampleImage().c_str()));
    MUST(cuModuleGetFunction(&add_one, module, "add_one"));
    MUST(cuModuleGetFunction(&bump, module, "bump"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxSynchronize());
  }

  std::string Round() {
    int one = 1, sum = 0;
    for (CUdeviceptr ptr : {plain, mapped, pool}) {
      void* params[] = {&ptr, &one};
      MUST(cuLaunchKernel(add_one, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
    }
    auto out = reinterpret_cast<CUdeviceptr>(pinned);
    void* params[] = {&out};
    MUST(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
    MUST(cuStreamSynchronize(stream));
    sum = *static_cast<int*>(pinned);
    for (CUdeviceptr ptr : {plain, mapped, pool}) {
      int value = 0;
      MUST(cuMemcpyDtoH_v2(&value, ptr, 4));
      sum += value;
    }
    return std::to_string(sum);
  }
};

SOFTGPU_ROLE(program) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  Program program;
  program.Make(arguments.empty() ? kMiB : std::stoul(arguments[0]) * kMiB);
  Say("ready");
  while (!Hear().empty()) Say(program.Round());
  return 0;
}

std::string SumAfter(int rounds) { return std::to_string(10 + 20 + 30 + 100 + 4 * rounds); }

CUprocessState State(pid_t pid) {
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  EXPECT_OK(cuCheckpointProcessGetState(pid, &state));
  return state;
}

using CheckpointTest = WithContext;

TEST_F(CheckpointTest, AllStepsOfACheckpoint) {
  size_t before = FreeBytes();
  Child program("program");
  ASSERT_EQ(program.Hear(), "ready");
  EXPECT_EQ(program.Ask("go"), SumAfter(1));
  pid_t pid = program.pid();
  int restore_thread = 0;
  EXPECT_EQ(State(pid), CU_PROCESS_STATE_RUNNING);
  ASSERT_OK(cuCheckpointProcessGetRestoreThreadId(pid, &restore_thread));
  EXPECT_NE(restore_thread, pid);
  for (int round = 2; round < 5; ++round) {
    EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(pid, nullptr));
    EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(pid, nullptr));
    ASSERT_OK(cuCheckpointProcessLock(pid, nullptr));
    EXPECT_EQ(State(pid), CU_PROCESS_STATE_LOCKED);
    EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessLock(pid, nullptr));
    EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(pid, nullptr));
    program.Say("go");  // blocks at the API's entry from now on
    EXPECT_GT(DeviceFiles(pid), 0);
    EXPECT_LT(FreeBytes(), before);
    ASSERT_OK(cuCheckpointProcessCheckpoint(pid, nullptr));
    EXPECT_EQ(State(pid), CU_PROCESS_STATE_CHECKPOINTED);
    EXPECT_EQ(DeviceFiles(pid), 0) << "no GPU file is left open or mapped";
    EXPECT_EQ(FreeBytes(), before) << "all its memory is free when the call returns";
    EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(pid, nullptr));
    ASSERT_OK(cuCheckpointProcessRestore(pid, nullptr));
    EXPECT_EQ(State(pid), CU_PROCESS_STATE_LOCKED);
    ASSERT_OK(cuCheckpointProcessUnlock(pid, nullptr));
    EXPECT_EQ(State(pid), CU_PROCESS_STATE_RUNNING);
    EXPECT_EQ(program.Hear(), SumAfter(round));
  }
}

TEST_F(CheckpointTest, AThreadIdActsOnItsProcess) {
  Child program("program");
  ASSERT_EQ(program.Hear(), "ready");
  int thread = 0;
  ASSERT_OK(cuCheckpointProcessGetRestoreThreadId(program.pid(), &thread));
  EXPECT_EQ(State(thread), CU_PROCESS_STATE_RUNNING);
  ASSERT_OK(cuCheckpointProcessLock(thread, nullptr));
  EXPECT_EQ(State(program.pid()), CU_PROCESS_STATE_LOCKED);
  ASSERT_OK(cuCheckpointProcessUnlock(thread, nullptr));
}

SOFTGPU_ROLE(idle) {
  if (!arguments.empty() && arguments[0] == "fork") {
    MUST(cuInit(0));
    pid_t child = fork();
    if (child == 0) {
      CUcontext context = nullptr;
      int count = 0;
      CUresult init = cuInit(0), get = cuDeviceGetCount(&count);
      CUresult create = cuCtxCreate_v2(&context, 0, 0);
      Say(Name(init) + " " + Name(get) + " " + Name(create));
      pause();
    }
  }
  Say(std::to_string(getpid()));
  Hear();
  return 0;
}

TEST_F(CheckpointTest, AProcessWithoutCudaIsReported) {
  CUprocessState state{};
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(0, &state));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(-1, &state));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(1 << 22, &state));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(getpid(), nullptr));
  Child idle("idle");  // has loaded the library, but not called cuInit
  idle.Hear();
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuCheckpointProcessGetState(idle.pid(), &state));
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuCheckpointProcessLock(idle.pid(), nullptr));
  CUcheckpointLockArgs args{};
  args.reserved1[6] = 1;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessLock(idle.pid(), &args));
}

TEST_F(CheckpointTest, AForkedChildIsNoCudaProcess) {
  Child parent("idle", {"fork"});
  std::string first = parent.Hear(), second = parent.Hear();
  if (first.starts_with("CUDA")) std::swap(first, second);
  EXPECT_EQ(second,
            "CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED");
  std::ifstream children("/proc/" + first + "/task/" + first + "/children");
  pid_t child = 0;
  children >> child;
  ASSERT_GT(child, 0);
  CUprocessState state{};
  EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuCheckpointProcessGetState(child, &state));
  EXPECT_GT(DeviceFiles(child), 0) << "it inherits the descriptors, as with the real driver";
  ASSERT_OK(cuCheckpointProcessLock(parent.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessUnlock(parent.pid(), nullptr));
  kill(child, SIGKILL);
}

SOFTGPU_ROLE(stuck) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  static std::atomic<bool> open{false};
  MUST(cuLaunchHostFunc(
      nullptr,
      [](void*) {
        while (!open) sched_yield();
      },
      nullptr));
  Say("stuck");
  Hear();
  open = true;
  MUST(cuCtxSynchronize());
  CUdeviceptr ptr = 0;
  MUST(cuMemAlloc_v2(&ptr, 16));
  Say("free");
  Hear();
  return 0;
}

TEST_F(CheckpointTest, ALockTimesOutAndTheProgramContinues) {
  Child stuck("stuck");
  ASSERT_EQ(stuck.Hear(), "stuck");
  CUcheckpointLockArgs args{};
  args.timeoutMs = 50;
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuCheckpointProcessLock(stuck.pid(), &args));
  EXPECT_EQ(State(stuck.pid()), CU_PROCESS_STATE_RUNNING);
  EXPECT_EQ(stuck.Ask("go"), "free");
  args.timeoutMs = 10000;
  ASSERT_OK(cuCheckpointProcessLock(stuck.pid(), &args));
  ASSERT_OK(cuCheckpointProcessUnlock(stuck.pid(), nullptr));
}

SOFTGPU_ROLE(locker) {
  MUST(cuInit(0));
  Say("locking");
  Say(Name(cuCheckpointProcessLock(std::stoi(arguments[0]), nullptr)));
  return 0;
}

TEST_F(CheckpointTest, ACallerThatDiesInALockDoesNoHarm) {
  Child stuck("stuck");
  ASSERT_EQ(stuck.Hear(), "stuck");
  Child locker("locker", {std::to_string(stuck.pid())});
  ASSERT_EQ(locker.Hear(), "locking");
  usleep(50000);  // most likely in the call by now; the test is correct in any case
  locker.Kill(SIGKILL);
  locker.Wait();
  EXPECT_EQ(stuck.Ask("go"), "free");
  EXPECT_TRUE(Eventually([&] { return State(stuck.pid()) == CU_PROCESS_STATE_RUNNING; }));
  ASSERT_OK(cuCheckpointProcessLock(stuck.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessUnlock(stuck.pid(), nullptr));
}

TEST_F(CheckpointTest, ATargetThatDiesEndsTheCall) {
  Child stuck("stuck");
  ASSERT_EQ(stuck.Hear(), "stuck");
  std::thread killer([&] {
    usleep(500000);  // give the request time to arrive
    stuck.Kill(SIGKILL);
  });
  EXPECT_CU(CUDA_ERROR_OPERATING_SYSTEM, cuCheckpointProcessLock(stuck.pid(), nullptr));
  killer.join();
}

// Returns when every thread is stopped.
void Stop(Child& child) {
  child.Kill(SIGSTOP);
  waitpid(child.pid(), nullptr, WUNTRACED);
}

TEST_F(CheckpointTest, RequestsOfDeadCallersAreDropped) {
  Child program("program");
  ASSERT_EQ(program.Hear(), "ready");
  ASSERT_OK(cuCheckpointProcessLock(program.pid(), nullptr));
  Stop(program);
  for (int i = 0; i < 2; ++i) {
    Child caller("checkpointer", {std::to_string(program.pid())});
    ASSERT_EQ(caller.Hear(), "ready");
    caller.Say("go");
    usleep(30000);  // most likely in the call by now; the test is correct in any case
    caller.Kill(SIGKILL);
    caller.Wait();
  }
  program.Kill(SIGCONT);
  ASSERT_OK(cuCheckpointProcessUnlock(program.pid(), nullptr));
  EXPECT_EQ(program.Ask("go"), SumAfter(1));
  Stop(program);
  CUcheckpointLockArgs args{};
  args.timeoutMs = 10;
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuCheckpointProcessLock(program.pid(), &args));
  program.Kill(SIGCONT);
  EXPECT_EQ(program.Ask("go"), SumAfter(2));
  EXPECT_EQ(State(program.pid()), CU_PROCESS_STATE_RUNNING);
}

SOFTGPU_ROLE(managed) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  CUdeviceptr ptr = 0;
  MUST(cuMemAllocManaged(&ptr, 4096, CU_MEM_ATTACH_GLOBAL));
  Say("ready");
  while (!Hear().empty()) {
    MUST(cuMemFree_v2(ptr));
    Say("freed");
  }
  return 0;
}

TEST_F(CheckpointTest, ManagedMemoryIsRejectedWithoutHarm) {
  Child managed("managed");
  ASSERT_EQ(managed.Hear(), "ready");
  ASSERT_OK(cuCheckpointProcessLock(managed.pid(), nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessCheckpoint(managed.pid(), nullptr));
  EXPECT_EQ(State(managed.pid()), CU_PROCESS_STATE_LOCKED);
  ASSERT_OK(cuCheckpointProcessUnlock(managed.pid(), nullptr));
  EXPECT_EQ(managed.Ask("go"), "freed");
}

TEST_F(CheckpointTest, OutOfMemoryInARestoreIsFinal) {
  Child program("program", {"150"});
  ASSERT_EQ(program.Hear(), "ready");
  ASSERT_OK(cuCheckpointProcessLock(program.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessCheckpoint(program.pid(), nullptr));
  CUdeviceptr ptr = 0;
  ASSERT_OK(cuMemAlloc_v2(&ptr, 120 * kMiB));
  size_t before = FreeBytes();
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuCheckpointProcessRestore(program.pid(), nullptr));
  EXPECT_EQ(FreeBytes(), before);
  EXPECT_EQ(State(program.pid()), CU_PROCESS_STATE_FAILED);
  ASSERT_OK(cuMemFree_v2(ptr));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(program.pid(), nullptr));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(program.pid(), nullptr));
}

CUcheckpointGpuPair Pair(int from, int to) {
  CUcheckpointGpuPair pair{};
  cuDeviceGetUuid_v2(&pair.oldUuid, from);
  cuDeviceGetUuid_v2(&pair.newUuid, to);
  return pair;
}

TEST_F(CheckpointTest, ARestoreMovesToAnotherGpuAndBack) {
  CUcontext second = nullptr;
  ASSERT_OK(cuCtxCreate_v2(&second, 0, 1));
  size_t before_1 = FreeBytes();
  Child program("program", {"40"});
  ASSERT_EQ(program.Hear(), "ready");
  pid_t pid = program.pid();
  for (int round = 1; round <= 4; ++round) {
    int from = round % 2 == 1 ? 0 : 1;
    ASSERT_OK(cuCheckpointProcessLock(pid, nullptr));
    ASSERT_OK(cuCheckpointProcessCheckpoint(pid, nullptr));
    CUcheckpointGpuPair pairs[2] = {Pair(from, 1 - from), Pair(1 - from, from)};
    CUcheckpointRestoreArgs args{};
    args.gpuPairs = pairs;
    args.gpuPairsCount = round < 3 ? 1 : 2;
    ASSERT_OK(cuCheckpointProcessRestore(pid, &args));
    EXPECT_EQ(FreeBytes() < before_1 - 40 * kMiB, from == 0);
    ASSERT_OK(cuCheckpointProcessUnlock(pid, nullptr));
    EXPECT_EQ(program.Ask("go"), SumAfter(round));
  }
  ASSERT_OK(cuCtxDestroy_v2(second));
}

TEST_F(CheckpointTest, AnInvalidMapIsRejectedBeforeAnyChange) {
  Child program("program");
  ASSERT_EQ(program.Hear(), "ready");
  ASSERT_OK(cuCheckpointProcessLock(program.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessCheckpoint(program.pid(), nullptr));
  CUcheckpointGpuPair unused = Pair(1, 1), unknown = Pair(0, 1);
  unknown.newUuid.bytes[3] = 99;
  CUcheckpointRestoreArgs args{};
  args.gpuPairsCount = 1;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(program.pid(), &args));
  args.gpuPairs = &unused;  // must contain every checkpointed GPU
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(program.pid(), &args));
  args.gpuPairs = &unknown;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(program.pid(), &args));
  EXPECT_EQ(State(program.pid()), CU_PROCESS_STATE_CHECKPOINTED);
  ASSERT_OK(cuCheckpointProcessRestore(program.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessUnlock(program.pid(), nullptr));
  EXPECT_EQ(program.Ask("go"), SumAfter(1));
}

SOFTGPU_ROLE(imported_handle) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  CUmemGenericAllocationHandle handle = 0;
  MUST(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{3}),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(3);
  Say("ready");
  Hear();
  return 0;
}

TEST_F(CheckpointTest, ARestoreWithImportedMemoryFails) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  ASSERT_OK(cuMemCreate(&handle, 2 * kMiB, &prop, 0));
  ASSERT_OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  Child importer("imported_handle", {}, {.pass_fd = fd});
  ASSERT_EQ(importer.Hear(), "ready");
  ASSERT_OK(cuCheckpointProcessLock(importer.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessCheckpoint(importer.pid(), nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessRestore(importer.pid(), nullptr));
  EXPECT_EQ(State(importer.pid()), CU_PROCESS_STATE_FAILED);
  close(fd);
  ASSERT_OK(cuMemRelease(handle));
}

SOFTGPU_ROLE(busy) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  std::atomic<bool> stop{false};
  std::atomic<long> rounds{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      MUST(cuCtxSetCurrent(context));
      std::vector<int> back(1024);
      while (!stop) {
        CUdeviceptr ptr = 0;
        MUST(cuMemAlloc_v2(&ptr, 4096));
        MUST(cuMemsetD32Async(ptr, 5, 1024, CU_STREAM_PER_THREAD));
        MUST(cuMemcpyDtoHAsync_v2(back.data(), ptr, 4096, CU_STREAM_PER_THREAD));
        for (int value : back) {
          if (value != 5) _exit(50);
        }
        MUST(cuMemFreeAsync(ptr, CU_STREAM_PER_THREAD));
        ++rounds;
      }
    });
  }
  while (rounds < 10) sched_yield();
  Say("ready");
  while (!Hear().empty()) {
    long seen = rounds;
    while (rounds < seen + 8) sched_yield();
    Say("alive");
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  return 0;
}

TEST_F(CheckpointTest, BusyThreadsCanBeLockedAtAnyMoment) {
  Child busy("busy");
  ASSERT_EQ(busy.Hear(), "ready");
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(cuCheckpointProcessLock(busy.pid(), nullptr));
    ASSERT_OK(cuCheckpointProcessCheckpoint(busy.pid(), nullptr));
    ASSERT_EQ(DeviceFiles(busy.pid()), 0);
    ASSERT_OK(cuCheckpointProcessRestore(busy.pid(), nullptr));
    ASSERT_OK(cuCheckpointProcessUnlock(busy.pid(), nullptr));
    ASSERT_EQ(busy.Ask("go"), "alive");
  }
  busy.Say("");
  EXPECT_EQ(busy.Wait(), 0);
}

}  // namespace
}  // namespace softgpu::test
