// The API of streams and events.

#include <string.h>
#include <sys/mman.h>

#include "api.h"
#include "capture.h"
#include "context.h"
#include "driver.h"
#include "event.h"
#include "pool.h"

namespace softgpu {

Event::~Event() {
  if (shared != nullptr) munmap(shared, kPage);
  driver().broker.Drop(kept);
}

CUresult MakeSharedEvent(Event* event) {
  Fd file(memfd_create("softgpu-event", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), kPage) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult r = driver().broker.Keep(file.get(), &event->kept); r != CUDA_SUCCESS) return r;
  return MapSharedEvent(file, event);
}

CUresult MapSharedEvent(const Fd& file, Event* event) {
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  event->shared = static_cast<SharedEvent*>(page);
  return CUDA_SUCCESS;
}

namespace api {

using Lock = std::lock_guard<std::mutex>;

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (stream == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  *stream = reinterpret_cast<CUstream>(
      NewStream(context, flags, std::min(0, std::max(-5, priority))).get());
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  Lock lock(driver().mutex);
  auto it = driver().streams.find(reinterpret_cast<Stream*>(handle));
  if (it == driver().streams.end() || it->second->legacy) return CUDA_ERROR_INVALID_HANDLE;
  it->second->context->streams.erase(it->first);
  driver().streams.erase(it);
  return CUDA_SUCCESS;
}

namespace {

template <class T, class F>
CUresult Ask(CUstream handle, T* out, F of) {
  Lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
  *out = of(stream);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return Ask(stream, priority, [](Stream* s) { return s->priority; });
}
CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  return Ask(stream, flags, [](Stream* s) { return s->flags; });
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return Ask(stream, id, [](Stream* s) { return s->id; });
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  return Ask(stream, context, [](Stream* s) { return Handle(s->context); });
}
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(stream, context);
}
CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  return Ask(stream, device, [](Stream* s) { return s->context->ordinal; });
}

CUresult cuStreamQuery(CUstream handle) {
  Lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
  if (CUresult r = RefuseWhileCapturing(stream); r != CUDA_SUCCESS) return r;
  return stream->timeline->Done(stream->timeline->submitted()) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle) {
  Ticket last;
  {
    Lock lock(driver().mutex);
    Stream* stream = nullptr;
    if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
    if (CUresult r = RefuseWhileCapturing(stream); r != CUDA_SUCCESS) return r;
    last = {stream->timeline, stream->timeline->submitted()};
  }
  last.Wait();
  TrimPools();
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user_data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Submit(stream, [=] { function(user_data); });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* user_data,
                             unsigned int flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  {
    Lock lock(driver().mutex);
    Stream* resolved = nullptr;
    if (CUresult r = ResolveStream(stream, &resolved); r != CUDA_SUCCESS) return r;
    if (CUresult r = RefuseWhileCapturing(resolved); r != CUDA_SUCCESS) return r;
  }
  return Submit(stream, [=] { callback(stream, CUDA_SUCCESS, user_data); });
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr, size_t, unsigned int) {
  return Submit(stream, [] {});
}

namespace {

template <class T>
CUresult WriteValue(CUstream stream, CUdeviceptr address, T value) {
  if (address == 0 || address % sizeof(T) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Submit(stream,
                [=] { __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_SEQ_CST); });
}

template <class T>
bool Reached(T now, T value, unsigned condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return std::make_signed_t<T>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:
      return T(~(now | value)) != 0;
  }
}

template <class T>
CUresult WaitValue(CUstream stream, CUdeviceptr address, T value, unsigned flags) {
  if (address == 0 || address % sizeof(T) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Submit(stream, [=] {
    const T* at = reinterpret_cast<T*>(address);
    while (!Reached(__atomic_load_n(at, __ATOMIC_SEQ_CST), value, flags & 3)) usleep(100);
  });
}

}  // namespace

CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr address, cuuint32_t value, unsigned int) {
  return WriteValue(s, address, value);
}
CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr address, cuuint64_t value, unsigned int) {
  return WriteValue(s, address, value);
}
CUresult cuStreamWaitValue32_v2(CUstream s, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags) {
  return WaitValue(s, address, value, flags);
}
CUresult cuStreamWaitValue64_v2(CUstream s, CUdeviceptr address, cuuint64_t value,
                                unsigned int flags) {
  return WaitValue(s, address, value, flags);
}

CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (handle == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  auto event = std::make_shared<Event>();
  event->context = context;
  event->flags = flags;
  if (flags & CU_EVENT_INTERPROCESS) {
    if (CUresult r = MakeSharedEvent(event.get()); r != CUDA_SUCCESS) return r;
  }
  *handle = reinterpret_cast<CUevent>(event.get());
  driver().events.emplace(event.get(), event);
  return CUDA_SUCCESS;
}

namespace {

std::shared_ptr<Event> FindEvent(CUevent handle) {
  auto it = driver().events.find(reinterpret_cast<Event*>(handle));
  return it == driver().events.end() ? nullptr : it->second;
}

// Returns true if the last record of an interprocess event has completed. Another process may have
// recorded the event.
bool SharedReached(const SharedEvent* shared) {
  return shared->reached.load() >= shared->recorded.load();
}

}  // namespace

CUresult cuEventDestroy_v2(CUevent handle) {
  Lock lock(driver().mutex);
  return driver().events.erase(reinterpret_cast<Event*>(handle)) == 1 ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  return cuEventRecordWithFlags(handle, stream_handle, 0);
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<Event> event;
  uint64_t shared_number = 0;
  {
    Lock lock(driver().mutex);
    event = FindEvent(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Stream* stream = nullptr;
    if (CUresult r = ResolveStream(stream_handle, &stream); r != CUDA_SUCCESS) return r;
    event->capture = stream->capture;
    if (event->shared != nullptr) shared_number = ++event->shared->recorded;
  }
  auto at = std::make_shared<std::atomic<uint64_t>>(0);
  Ticket ticket;
  CUresult r = Submit(
      stream_handle,
      [at, event, shared_number] {
        at->store(NowNs());
        if (event->shared != nullptr) event->shared->reached.store(shared_number);
      },
      &ticket);
  if (r != CUDA_SUCCESS) return r;
  Lock lock(driver().mutex);
  event->ticket = ticket;
  event->at = at;
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
  Lock lock(driver().mutex);
  auto event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (CUresult r = RefuseUnsafe(); r != CUDA_SUCCESS) return r;
  if (event->shared != nullptr && !SharedReached(event->shared)) return CUDA_ERROR_NOT_READY;
  return event->ticket.Done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  std::shared_ptr<Event> event;
  Ticket ticket;
  {
    Lock lock(driver().mutex);
    event = FindEvent(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
    ticket = event->ticket;
  }
  ticket.Wait();
  while (event->shared != nullptr && !SharedReached(event->shared)) usleep(100);
  TrimPools();
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  Lock lock(driver().mutex);
  auto from = FindEvent(start), to = FindEvent(end);
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (from == nullptr || to == nullptr || from->at == nullptr || to->at == nullptr ||
      ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!from->ticket.Done() || !to->ticket.Done()) return CUDA_ERROR_NOT_READY;
  *milliseconds = float(double(int64_t(to->at->load() - from->at->load())) / 1e6);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Event> event;
  Ticket ticket;
  {
    Lock lock(driver().mutex);
    event = FindEvent(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Stream* stream = nullptr;
    if (CUresult r = ResolveStream(stream_handle, &stream); r != CUDA_SUCCESS) return r;
    if (event->capture != nullptr) {
      JoinCapture(stream, event->capture);
      return CUDA_SUCCESS;
    }
    ticket = event->ticket;
  }
  return Submit(stream_handle, [event, ticket] {
    ticket.Wait();
    while (event->shared != nullptr && !SharedReached(event->shared)) usleep(100);
  });
}

}  // namespace api
}  // namespace softgpu
