#include "dataplane/ring_feed.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

#include "base/parallel.h"
#include "dataplane/mover_protocol.h"

namespace stasis::dataplane {
namespace {

// Processors for the mover and for the thread that sends batches. With more threads than processors
// loads took 1.3 to 1.8 times as long (docs/measurements/images.md).
constexpr unsigned kOtherThreads = 2;
constexpr unsigned kLeastThreads = 4;  // they also wait for the storage
// One buffer is being read, one waits, and one is being copied.
constexpr uint64_t kBuffersOfThread = 3;
// A batch has at most this share of the buffers, so that readers always have some.
constexpr uint64_t kBatchesOfRing = wire::kBatchesInFlight + 1;
constexpr auto kInterval = std::chrono::milliseconds(100);

unsigned MostThreads() {
  return std::max(ProcessorCount(), kLeastThreads + kOtherThreads) - kOtherThreads;
}

}  // namespace

uint64_t RingFeed::RingBytes(uint64_t load_bytes, uint64_t most_bytes) {
  const uint64_t needed = (load_bytes + LoadSource::kItemBytes - 1) / LoadSource::kItemBytes;
  const uint64_t most =
      std::min<uint64_t>(kBuffersOfThread * MostThreads(), most_bytes / LoadSource::kItemBytes);
  return std::clamp(needed, kBatchesOfRing, std::max(most, kBatchesOfRing)) *
         LoadSource::kItemBytes;
}

RingFeed::RingFeed(const LoadSource& source, char* ring, uint64_t ring_bytes)
    : source_(source),
      ring_(ring),
      most_buffers_(ring_bytes / LoadSource::kItemBytes / kBatchesOfRing),
      least_buffers_(most_buffers_ / 2) {
  assert(most_buffers_ > 0);
  for (size_t i = ring_bytes / LoadSource::kItemBytes; i > 0; --i) free_.push_back(i - 1);
  threads_ = StartThreads(std::min<size_t>(source_.items(), MostThreads()), [this] { Fill(); });
}

RingFeed::~RingFeed() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  has_free_.notify_all();
}

void RingFeed::Fill() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_free_.wait(lock, [this] { return stop_ || next_ == source_.items() || !free_.empty(); });
    if (stop_ || next_ == source_.items()) break;
    FillOne(lock);
  }
}

// Requires a free buffer and an item.
void RingFeed::FillOne(std::unique_lock<std::mutex>& lock) {
  const size_t item = next_++;
  Filled filled{free_.back(), {}};
  free_.pop_back();
  ++reading_;
  if (next_ == source_.items()) has_free_.notify_all();
  lock.unlock();
  const uint64_t at = filled.buffer * LoadSource::kItemBytes;
  Status read = source_.Read(item, ring_ + at, filled.parts);
  for (LoadPart& part : filled.parts) part.buffer_offset += at;
  lock.lock();
  --reading_;
  assert(!read || !filled.parts.empty());
  if (read) {
    filled_.push_back(std::move(filled));
  } else {
    stop_ = true;
    if (error_) error_ = std::move(read);
  }
  if (IsBatch() || !error_) has_filled_.notify_one();
}

bool RingFeed::IsBatch() const {
  const bool nothing_comes = reading_ == 0 && (next_ == source_.items() || free_.empty());
  return !filled_.empty() && (filled_.size() >= least_buffers_ || nothing_comes);
}

RingFeed::Batch RingFeed::Take(size_t most) {
  Batch batch;
  while (!filled_.empty() && batch.parts.size() < most && batch.buffers.size() < most_buffers_) {
    Filled& filled = filled_.front();
    while (filled.taken < filled.parts.size() && batch.parts.size() < most) {
      batch.parts.push_back(filled.parts[filled.taken++]);
    }
    if (filled.taken < filled.parts.size()) break;
    batch.buffers.push_back(filled.buffer);
    filled_.pop_front();
  }
  return batch;
}

Result<RingFeed::Batch> RingFeed::Next(size_t most, const std::function<Status()>& go_on) {
  STASIS_TRY(go_on());
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!error_) return Fail(error_.error());
    if (IsBatch()) return Take(most);
    if (next_ == source_.items() && reading_ == 0) return Batch{};
    if (threads_.empty()) {
      FillOne(lock);
    } else if (has_filled_.wait_for(lock, kInterval) == std::cv_status::timeout) {
      lock.unlock();
      STASIS_TRY(go_on());
      lock.lock();
    }
  }
}

void RingFeed::Reuse(const std::vector<size_t>& buffers) {
  if (buffers.empty()) return;
  {
    std::lock_guard lock(mutex_);
    free_.insert(free_.end(), buffers.begin(), buffers.end());
  }
  has_free_.notify_all();
}

}  // namespace stasis::dataplane
