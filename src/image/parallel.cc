#include "image/parallel.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/parallel.h"

namespace stasis::image {

namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(100);

}  // namespace

Status ForEach(size_t count, const std::function<void(size_t)>& work,
               const std::atomic<uint64_t>& done, uint64_t total, const Progress& progress,
               unsigned waiting) {
  std::atomic<size_t> next{0};
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  std::condition_variable finished;
  const size_t wanted = std::min<size_t>(count, ProcessorCount() + waiting);
  size_t running = wanted;
  auto worker = [&] {
    for (size_t i; !cancelled && (i = next++) < count;) work(i);
    std::lock_guard lock(mutex);
    assert(running > 0);
    if (--running == 0) finished.notify_one();
  };
  std::vector<Thread> threads = StartThreads(wanted, worker);
  {
    std::lock_guard lock(mutex);
    running -= wanted - threads.size();
  }
  if (threads.empty() && count > 0) {
    for (size_t i = 0; i < count && !cancelled; ++i) {
      work(i);
      if (progress && !progress(done, total)) cancelled = true;
    }
  }
  {
    std::unique_lock lock(mutex);
    while (!finished.wait_for(lock, kProgressInterval, [&] { return running == 0; })) {
      lock.unlock();
      if (progress && !progress(done, total)) cancelled = true;
      lock.lock();
    }
  }
  threads.clear();
  assert(running == 0);
  if (!cancelled && progress && !progress(done, total)) cancelled = true;
  if (cancelled) return Fail(Code::kCancelled, "cancelled");
  return {};
}

}  // namespace stasis::image
