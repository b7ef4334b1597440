#include "stream.h"

#include <system_error>

#include "capture.h"
#include "context.h"
#include "driver.h"
#include "fault.h"

namespace softgpu {
namespace {

thread_local bool t_on_stream_thread = false;

}  // namespace

bool OnStreamThread() { return t_on_stream_thread; }

void Timeline::Complete() {
  {
    std::lock_guard lock(mutex_);
    completed_.fetch_add(1);
  }
  changed_.notify_all();
}

void Timeline::Wait(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return Done(ticket); });
}

void Stream::Work(const std::shared_ptr<Queue>& queue, const std::shared_ptr<Timeline>& timeline) {
  t_on_stream_thread = true;
  for (;;) {
    Item item;
    {
      std::unique_lock lock(queue->mutex);
      queue->changed.wait(lock, [&] { return queue->closed || !queue->items.empty(); });
      if (queue->items.empty()) return;
      item = std::move(queue->items.front());
      queue->items.pop_front();
    }
    for (const Ticket& ticket : item.after) ticket.Wait();
    item.work();
    item = {};
    timeline->Complete();
    g_pending.fetch_sub(1);
    driver().gate.Progress();
  }
}

bool Stream::StartThread() {
  if (queue_ != nullptr) return true;
  auto queue = std::make_shared<Queue>();
  // SAFETY: the program's signals must be handled by the program's own threads, not by this one.
  BlockSignals block;
  try {
    std::thread(Work, queue, timeline).detach();
  } catch (const std::system_error&) {
    return false;
  }
  queue_ = std::move(queue);
  return true;
}

Ticket Stream::Enqueue(std::function<void()> work, std::vector<Ticket> after) {
  g_pending.fetch_add(1);
  Ticket ticket{timeline, timeline->Submit()};
  {
    std::lock_guard lock(queue_->mutex);
    queue_->items.push_back({std::move(work), std::move(after)});
  }
  queue_->changed.notify_one();
  return ticket;
}

void Stream::Close() {
  if (queue_ == nullptr) return;
  {
    std::lock_guard lock(queue_->mutex);
    queue_->closed = true;
  }
  queue_->changed.notify_one();
}

Stream::~Stream() { Close(); }

CUresult ResolveStream(CUstream handle, Stream** out) {
  Context* context = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  if (handle == nullptr) handle = PerThreadDefault() ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  if (handle == CU_STREAM_LEGACY) {
    *out = context->legacy.get();
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    auto& mine = context->per_thread[gettid()];
    if (mine == nullptr) mine = NewStream(context, 0, 0);
    *out = mine.get();
    return CUDA_SUCCESS;
  }
  Stream* stream = reinterpret_cast<Stream*>(handle);
  if (!driver().streams.contains(stream)) return CUDA_ERROR_INVALID_HANDLE;
  *out = stream;
  return CUDA_SUCCESS;
}

namespace {

// The legacy stream waits for every blocking stream of its context, and they wait for it.
std::vector<Ticket> Before(Stream* stream) {
  std::vector<Ticket> before;
  auto wait_for = [&](const Stream* other) {
    Ticket ticket{other->timeline, other->timeline->submitted()};
    if (!ticket.Done()) before.push_back(ticket);
  };
  if (stream->flags & CU_STREAM_NON_BLOCKING) return before;
  if (!stream->legacy) {
    wait_for(stream->context->legacy.get());
    return before;
  }
  for (Stream* other : stream->context->streams) {
    if (!(other->flags & CU_STREAM_NON_BLOCKING)) wait_for(other);
  }
  return before;
}

}  // namespace

CUresult Submit(CUstream handle, std::function<void()> work, Ticket* ticket) {
  std::lock_guard lock(driver().mutex);
  Stream* stream = nullptr;
  if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
  bool captured = false;
  if (CUresult r = CaptureWork(stream, &captured); r != CUDA_SUCCESS || captured) return r;
  if (!stream->StartThread()) return CUDA_ERROR_OPERATING_SYSTEM;
  if (const int late_ms = fault::TakeLate(); late_ms > 0) {
    work = [late_ms, work = std::move(work)] {
      usleep(useconds_t(late_ms) * 1000);
      work();
    };
  }
  Ticket mine = stream->Enqueue(std::move(work), Before(stream));
  if (ticket != nullptr) *ticket = mine;
  return CUDA_SUCCESS;
}

CUresult SubmitAndWait(CUstream handle, std::function<void()> work) {
  {
    std::lock_guard lock(driver().mutex);
    Stream* stream = nullptr;
    if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
    if (CUresult r = RefuseWhileCapturing(stream); r != CUDA_SUCCESS) return r;
  }
  Ticket ticket;
  CUresult result = Submit(handle, std::move(work), &ticket);
  ticket.Wait();
  return result;
}

std::vector<Ticket> AllWork(Context* context) {
  std::vector<Ticket> all;
  for (Stream* stream : context->streams) {
    all.push_back({stream->timeline, stream->timeline->submitted()});
  }
  return all;
}

}  // namespace softgpu
