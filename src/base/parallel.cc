#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace stasis {

namespace {

constexpr unsigned kMaxThreads = 16;

}  // namespace

unsigned ProcessorCount() {
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
}

std::vector<Thread> StartThreads(size_t count, const std::function<void()>& work) {
  std::vector<Thread> threads;
  while (threads.size() < count) {
    auto thread = Thread::Start(work);
    if (!thread) break;
    threads.push_back(std::move(*thread));
  }
  return threads;
}

Status ForEachWithProgress(size_t count, const std::function<Status(size_t)>& work,
                           const std::atomic<uint64_t>& done, uint64_t total,
                           const Progress& progress, unsigned extra_threads) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards `failed` and `running`
  std::condition_variable finished;
  Status failed;
  const size_t wanted = std::min<size_t>(count, ProcessorCount() + extra_threads);
  size_t running = wanted;
  auto one = [&](size_t i) {
    Status status = work(i);
    if (status) return;
    stop = true;
    std::lock_guard lock(mutex);
    if (failed) failed = std::move(status);
  };
  auto worker = [&] {
    for (size_t i; !stop && (i = next++) < count;) one(i);
    std::lock_guard lock(mutex);
    assert(running > 0);
    if (--running == 0) finished.notify_one();
  };
  bool cancelled = false;
  auto report = [&] {
    if (!progress || progress(done, total)) return;
    cancelled = true;
    stop = true;
  };
  std::vector<Thread> threads = StartThreads(wanted, worker);
  {
    std::unique_lock lock(mutex);
    running -= wanted - threads.size();
    while (!finished.wait_for(lock, kInterval, [&] { return running == 0; })) {
      lock.unlock();
      report();
      lock.lock();
    }
  }
  if (threads.empty()) {
    for (size_t i = 0; i < count && !stop; ++i) {
      one(i);
      report();
    }
  }
  threads.clear();
  if (!failed) return failed;
  if (!cancelled) report();
  if (cancelled) return Fail(Code::kCancelled, "cancelled");
  return {};
}

Status InParallel(size_t count, const std::function<Status(size_t)>& step) {
  if (count == 1) return step(0);
  std::vector<Status> results(count);
  std::vector<Thread> threads;
  // Every step runs on its own thread and none on the caller's, because plan/plan.cc assumes that a
  // thread that waits inside a phase has no other work.
  for (size_t i = 0; i < count; ++i) {
    auto thread = Thread::Start([&results, &step, i] { results[i] = step(i); });
    if (!thread) break;
    threads.push_back(std::move(*thread));
  }
  const size_t started = threads.size();
  threads.clear();
  for (size_t i = started; i < count; ++i) results[i] = step(i);
  for (Status& result : results) STASIS_TRY(std::move(result));
  return {};
}

std::future<Status> RunBeside(const std::function<Status()>& work) {
  const StartMayFail may_fail;
  try {
    return std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    std::promise<Status> done;
    done.set_value(work());
    return done.get_future();
  }
}

}  // namespace stasis
