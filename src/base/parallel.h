// Parallel work that uses fewer threads if no more can be started.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include "base/result.h"
#include "base/thread.h"

namespace stasis {

// Returns the number of processors, at most 16. More threads have not been measured, and would take
// processor time from the user's programs.
unsigned ProcessorCount();

// Starts up to `count` threads that run `work`. Returns fewer, or none, if no more can be started.
std::vector<Thread> StartThreads(size_t count, const std::function<void()>& work);

// Called regularly with the bytes done and the bytes in total (0 if unknown). Returns false to
// cancel the work.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// Calls work(0) … work(count - 1), started in this order, on one thread for each processor plus
// `extra_threads` (for work that waits for storage). Meanwhile the caller's thread passes `done`,
// which `work` must increase, to `progress`. No call starts after one has failed or `progress` has
// returned false. Returns the first error, or kCancelled.
Status ForEachWithProgress(size_t count, const std::function<Status(size_t)>& work,
                           const std::atomic<uint64_t>& done, uint64_t total,
                           const Progress& progress, unsigned extra_threads = 0);

// Calls step(0) … step(count - 1) concurrently, each on its own thread unless there is only one. A
// step whose thread cannot be started runs on the caller's thread after all others have finished,
// so steps must not wait for each other. Returns the error of the lowest index.
Status InParallel(size_t count, const std::function<Status(size_t)>& step);

// Runs `work` on its own thread, or immediately on the caller's thread if none can be started. The
// destructor of the future waits for the work to finish.
std::future<Status> RunBeside(const std::function<Status()>& work);

}  // namespace stasis
