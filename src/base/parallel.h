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

// Returns the number of processors, at most 16. More threads were never measured, and the user's
// program may need the processors too.
unsigned ProcessorCount();

// Starts up to `count` threads that run `work`. Returns fewer, or none, if no more can be started.
std::vector<Thread> StartThreads(size_t count, const std::function<void()>& work);

// Calls work(0) … work(count - 1), started in this order, on up to `threads` threads including the
// caller's. Returns when all calls have finished.
void ForEachIndex(size_t count, unsigned threads, const std::function<void(size_t)>& work);

// Reports bytes done, of all (0: unknown). Called now and then; returns false to cancel.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// Calls work(0) … work(count - 1), started in this order, on one thread for each processor and
// `extra_threads` more (for work that waits for storage), and `progress` on the caller's thread
// meanwhile, with `done`, which the work counts up. No call starts after one has failed or
// `progress` has returned false. Returns the first error, or kCancelled.
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
