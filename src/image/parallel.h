// Work on many things at once, and a caller who is told how far it is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/result.h"

namespace stasis::image {

// Called now and then on the caller's thread; false cancels.
using Progress = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

// Runs work(i) for i in [0, count) on several threads, begun in this order, and `progress` on this
// one meanwhile; no new item begins after a cancel (kCancelled). `done` is what the workers count
// up. `waiting`: so many threads more than processors, for work that waits for storage.
Status ForEach(size_t count, const std::function<void(size_t)>& work,
               const std::atomic<uint64_t>& done, uint64_t total, const Progress& progress,
               unsigned waiting = 0);

}  // namespace stasis::image
