#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "testing.h"

namespace softgpu::test {
namespace {

using StreamTest = WithContext;

// A host function that blocks until it is released.
struct Latch {
  std::atomic<bool> reached{false};
  std::atomic<bool> open{false};

  static void Wait(void* raw) {
    auto* latch = static_cast<Latch*>(raw);
    latch->reached = true;
    while (!latch->open) sched_yield();
  }
};

void Count(void* raw) { ++*static_cast<std::atomic<int>*>(raw); }

TEST_F(StreamTest, WorkRunsAsynchronously) {
  CUstream stream = nullptr;
  ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Latch latch;
  std::atomic<int> count{0};
  ASSERT_OK(cuLaunchHostFunc(stream, Latch::Wait, &latch));
  ASSERT_OK(cuLaunchHostFunc(stream, Count, &count));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(count, 0);
  latch.open = true;
  ASSERT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(count, 1);
  EXPECT_OK(cuStreamQuery(stream));
  ASSERT_OK(cuStreamDestroy_v2(stream));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(stream));
}

TEST_F(StreamTest, TheLegacyStreamAndBlockingStreamsWaitForEachOther) {
  CUstream blocking = nullptr, free_running = nullptr;
  ASSERT_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  ASSERT_OK(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING));
  Latch latch;
  std::atomic<int> legacy{0}, after{0}, beside{0};
  ASSERT_OK(cuLaunchHostFunc(blocking, Latch::Wait, &latch));
  ASSERT_OK(cuLaunchHostFunc(nullptr, Count, &legacy));
  ASSERT_OK(cuLaunchHostFunc(blocking, Count, &after));
  ASSERT_OK(cuLaunchHostFunc(free_running, Count, &beside));
  ASSERT_OK(cuStreamSynchronize(free_running));
  EXPECT_EQ(beside, 1) << "a non-blocking stream waits for no other stream";
  EXPECT_EQ(legacy, 0);
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
  latch.open = true;
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(legacy + after, 2);
  ASSERT_OK(cuStreamDestroy_v2(blocking));
  ASSERT_OK(cuStreamDestroy_v2(free_running));
}

TEST_F(StreamTest, PerThreadSymbolsUseTheThreadsOwnStream) {
  CUstream here = nullptr;
  unsigned long long mine = 0, other = 0, legacy = 0;
  ASSERT_OK(cuStreamGetId(nullptr, &legacy));
  ASSERT_OK(cuStreamGetId_ptsz(nullptr, &mine));
  std::thread([&] {
    EXPECT_OK(cuCtxSetCurrent(context_));
    EXPECT_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &other));
  }).join();
  EXPECT_NE(mine, legacy);
  EXPECT_NE(mine, other);
  // The default streams of two threads do not wait for each other.
  Latch latch;
  std::atomic<int> count{0};
  ASSERT_OK(cuLaunchHostFunc_ptsz(here, Latch::Wait, &latch));
  std::thread([&] {
    EXPECT_OK(cuCtxSetCurrent(context_));
    EXPECT_OK(cuLaunchHostFunc_ptsz(nullptr, Count, &count));
    EXPECT_OK(cuStreamSynchronize_ptsz(nullptr));
  }).join();
  EXPECT_EQ(count, 1);
  latch.open = true;
  ASSERT_OK(cuCtxSynchronize());
}

TEST_F(StreamTest, EventsOrderStreamsAndMeasureTime) {
  CUstream first = nullptr, second = nullptr;
  CUevent start = nullptr, end = nullptr;
  ASSERT_OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuEventCreate(&start, 0));
  ASSERT_OK(cuEventCreate(&end, 0));
  EXPECT_OK(cuEventQuery(start)) << "never recorded";
  Latch latch;
  std::atomic<int> count{0};
  ASSERT_OK(cuEventRecord(start, first));
  ASSERT_OK(cuLaunchHostFunc(first, Latch::Wait, &latch));
  ASSERT_OK(cuEventRecord(end, first));
  ASSERT_OK(cuStreamWaitEvent(second, end, 0));
  ASSERT_OK(cuLaunchHostFunc(second, Count, &count));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuEventQuery(end));
  float milliseconds = -1;
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&milliseconds, start, end));
  EXPECT_EQ(count, 0);
  latch.open = true;
  ASSERT_OK(cuEventSynchronize(end));
  ASSERT_OK(cuStreamSynchronize(second));
  EXPECT_EQ(count, 1);
  ASSERT_OK(cuEventElapsedTime_v2(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0);
  for (CUevent event : {start, end}) ASSERT_OK(cuEventDestroy_v2(event));
  for (CUstream stream : {first, second}) ASSERT_OK(cuStreamDestroy_v2(stream));
}

TEST_F(StreamTest, CallbacksMayNotCallTheDriver) {
  struct Seen {
    CUresult status = CUDA_ERROR_UNKNOWN;
    CUresult call = CUDA_SUCCESS;
  } seen;
  auto callback = [](CUstream, CUresult status, void* raw) {
    auto* to = static_cast<Seen*>(raw);
    CUdeviceptr ptr;
    to->status = status;
    to->call = cuMemAlloc_v2(&ptr, 16);
  };
  ASSERT_OK(cuStreamAddCallback(nullptr, callback, &seen, 0));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_CU(CUDA_SUCCESS, seen.status);
  EXPECT_CU(CUDA_ERROR_NOT_PERMITTED, seen.call);
}

TEST_F(StreamTest, StreamsWaitForAndWriteValues) {
  CUdeviceptr flag = 0;
  CUstream waiting = nullptr, writing = nullptr;
  ASSERT_OK(cuMemAlloc_v2(&flag, 8));
  ASSERT_OK(cuMemsetD32_v2(flag, 0, 2));
  ASSERT_OK(cuCtxSynchronize());
  ASSERT_OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuStreamCreate(&writing, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuStreamWaitValue32_v2(waiting, flag, 5, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
  ASSERT_OK(cuStreamWriteValue32_v2(writing, flag, 6, 0));
  ASSERT_OK(cuStreamSynchronize(waiting));
  ASSERT_OK(cuStreamDestroy_v2(waiting));
  ASSERT_OK(cuStreamDestroy_v2(writing));
  ASSERT_OK(cuMemFree_v2(flag));
}

TEST_F(StreamTest, APageableSourceMayChangeAfterTheCall) {
  CUstream stream = nullptr;
  CUdeviceptr ptr = 0;
  ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuMemAlloc_v2(&ptr, 4));
  Latch latch;
  ASSERT_OK(cuLaunchHostFunc(stream, Latch::Wait, &latch));
  int value = 41;
  ASSERT_OK(cuMemcpyHtoDAsync_v2(ptr, &value, 4, stream));
  value = 0;
  latch.open = true;
  int back = 0;
  ASSERT_OK(cuMemcpyDtoHAsync_v2(&back, ptr, 4, stream));
  EXPECT_EQ(back, 41);
  ASSERT_OK(cuStreamDestroy_v2(stream));
  ASSERT_OK(cuMemFree_v2(ptr));
}

TEST_F(StreamTest, CapturedWorkDoesNotRun) {
  CUstream stream = nullptr;
  ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::atomic<int> count{0};
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr, building = nullptr;
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  ASSERT_OK(cuLaunchHostFunc(stream, Count, &count));
  ASSERT_OK(cuLaunchHostFunc(stream, Count, &count));
  ASSERT_OK(cuStreamGetCaptureInfo_v3(stream, &status, &id, &building, nullptr, nullptr, nullptr));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_NE(id, 0u);
  ASSERT_OK(cuStreamEndCapture(stream, &graph));
  EXPECT_EQ(graph, building);
  size_t nodes = 0;
  ASSERT_OK(cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  ASSERT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(count, 0);
  ASSERT_OK(cuGraphDestroy(graph));
  ASSERT_OK(cuStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
  ASSERT_OK(cuStreamDestroy_v2(stream));
}

TEST_F(StreamTest, AForbiddenCallInvalidatesACapture) {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUdeviceptr ptr = 0;
  ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&ptr, 16));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuLaunchHostFunc(stream, Count, nullptr));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));

  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(cuMemAlloc_v2(&ptr, 16));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuLaunchHostFunc(nullptr, Count, nullptr));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  ASSERT_OK(cuMemFree_v2(ptr));
  ASSERT_OK(cuStreamDestroy_v2(stream));
}

TEST_F(StreamTest, AnEventOfACaptureAddsTheWaitingStream) {
  CUstream origin = nullptr, joined = nullptr;
  CUevent fork_event = nullptr, join_event = nullptr;
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  ASSERT_OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  ASSERT_OK(cuEventRecord(fork_event, origin));
  EXPECT_CU(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(fork_event));
  ASSERT_OK(cuStreamWaitEvent(joined, fork_event, 0));
  ASSERT_OK(cuStreamIsCapturing(joined, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(joined, &graph));
  ASSERT_OK(cuEventRecord(join_event, joined));
  ASSERT_OK(cuStreamWaitEvent(origin, join_event, 0));
  ASSERT_OK(cuStreamEndCapture(origin, &graph));
  ASSERT_OK(cuStreamIsCapturing(joined, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_OK(cuGraphDestroy(graph));
  for (CUevent event : {fork_event, join_event}) ASSERT_OK(cuEventDestroy_v2(event));
  for (CUstream stream : {origin, joined}) ASSERT_OK(cuStreamDestroy_v2(stream));
}

}  // namespace
}  // namespace softgpu::test
