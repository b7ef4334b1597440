// Streams: a queue and a thread each. Work is ordered by tickets on timelines.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base.h"

namespace softgpu {

struct Context;
struct Graph;

// How far a stream has come. Tickets begin with 1.
class Timeline {
 public:
  uint64_t Submit() { return ++submitted_; }
  uint64_t submitted() const { return submitted_; }
  bool Done(uint64_t ticket) const { return completed_.load() >= ticket; }
  void Complete();
  void Wait(uint64_t ticket);

 private:
  uint64_t submitted_ = 0;  // under driver().mutex
  std::atomic<uint64_t> completed_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct Ticket {
  std::shared_ptr<Timeline> timeline;
  uint64_t number = 0;

  bool Done() const { return timeline == nullptr || timeline->Done(number); }
  void Wait() const {
    if (timeline != nullptr) timeline->Wait(number);
  }
};

// One capture, shared by the streams that take part in it.
struct Capture {
  CUstreamCaptureMode mode;
  uint64_t id;
  Graph* graph;
  struct Stream* origin;
  pid_t thread;
  bool valid = true;
};

// A running program's stream. Its handle is its address.
struct Stream : std::enable_shared_from_this<Stream> {
  Context* context;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false;
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
  std::shared_ptr<Capture> capture;

  ~Stream();
  // Both under driver().mutex. `after`: what must be done before.
  Ticket Enqueue(std::function<void()> work, std::vector<Ticket> after);
  // What was submitted still runs; then the thread ends.
  void Close();

 private:
  struct Item {
    std::function<void()> work;
    std::vector<Ticket> after;
  };
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> items;
    bool closed = false;
  };
  static void Work(const std::shared_ptr<Queue>& queue, const std::shared_ptr<Timeline>& timeline);

  std::shared_ptr<Queue> queue_;  // with the first work
};

// Work that was submitted and is not done, of all streams.
inline std::atomic<uint64_t> g_pending{0};

// Whether this is a stream's thread: there the driver may not be called.
bool OnStreamThread();

// Under driver().mutex: the stream that a handle means, for the context that is current.
CUresult ResolveStream(CUstream handle, Stream** out);

// Submits to a stream, ordered as its kind wants; while it captures, only counts a node. `*ticket`
// (may be null) has no timeline then.
CUresult Submit(CUstream handle, std::function<void()> work, Ticket* ticket = nullptr);
// Submits and waits; refuses a capturing stream.
CUresult SubmitAndWait(CUstream handle, std::function<void()> work);

// A ticket for all work of the context so far. Under driver().mutex.
std::vector<Ticket> AllWork(Context* context);

}  // namespace softgpu
