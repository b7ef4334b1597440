// Streams: each has a queue and a thread. The timeline of a stream counts its work items, and a
// ticket identifies one of them.
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

// Counts the submitted and the completed work items of a stream. A ticket is the number of a work
// item, from 1.
class Timeline {
 public:
  uint64_t Submit() { return ++submitted_; }
  uint64_t submitted() const { return submitted_; }
  bool Done(uint64_t ticket) const { return completed_.load() >= ticket; }
  void Complete();
  void Wait(uint64_t ticket);

 private:
  uint64_t submitted_ = 0;  // guarded by driver().mutex
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

// A stream of the program. Its address is its handle.
struct Stream : std::enable_shared_from_this<Stream> {
  Context* context;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false;
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
  std::shared_ptr<Capture> capture;

  ~Stream();
  // The next three functions require driver().mutex. StartThread starts the thread of the stream;
  // it returns false if no more threads can be started.
  bool StartThread();
  // Call after StartThread(). `after` lists work that must finish first.
  Ticket Enqueue(std::function<void()> work, std::vector<Ticket> after);
  // Makes the thread exit when all submitted work has run. Does not wait for the exit.
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

  std::shared_ptr<Queue> queue_;  // created with the first work
};

// Number of submitted and unfinished work items of all streams.
inline std::atomic<uint64_t> g_pending{0};

// Returns true on a stream's thread, where driver calls are not allowed.
bool OnStreamThread();

// Resolves a stream handle for the current context. Requires driver().mutex.
CUresult ResolveStream(CUstream handle, Stream** out);

// Submits work to a stream in the order that the stream's kind requires. If the stream is being
// captured, only increments the graph's node count and leaves `*ticket` unchanged. `ticket` may be
// null.
CUresult Submit(CUstream handle, std::function<void()> work, Ticket* ticket = nullptr);
// Submits work and waits for it; returns an error if the stream is being captured.
CUresult SubmitAndWait(CUstream handle, std::function<void()> work);

// Returns tickets for all work submitted to the context so far. Requires driver().mutex.
std::vector<Ticket> AllWork(Context* context);

}  // namespace softgpu
