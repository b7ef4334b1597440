#include "image/parallel.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace stasis::image {

namespace {

constexpr unsigned kMaxThreads = 16;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);

}  // namespace

unsigned Processors() { return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads); }

Status ForEach(size_t count, const std::function<void(size_t)>& work,
               const std::atomic<uint64_t>& done, uint64_t total, const Progress& progress,
               unsigned waiting) {
  std::atomic<size_t> next{0};
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  std::condition_variable finished;
  size_t running = 0;

  auto worker = [&] {
    for (size_t i; !cancelled && (i = next++) < count;) work(i);
    std::lock_guard lock(mutex);
    if (--running == 0) finished.notify_one();
  };
  size_t wanted = std::min<size_t>(count, Processors() + waiting);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < wanted; ++i) {
    std::lock_guard lock(mutex);
    ++running;
    try {
      threads.emplace_back(worker);
    } catch (const std::system_error&) {  // no more threads here: fewer will do
      --running;
      break;
    }
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
  for (std::thread& thread : threads) thread.join();
  if (!cancelled && progress && !progress(done, total)) cancelled = true;
  if (cancelled) return Fail(Code::kCancelled, "cancelled");
  return {};
}

}  // namespace stasis::image
