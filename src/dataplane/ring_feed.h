// Reads a LoadSource to the buffers of a ring with several threads, ahead of the copies to the GPU.
// The buffers are used again and again, so the data stays in the processors' caches.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "base/thread.h"
#include "dataplane/load_source.h"

namespace stasis::dataplane {

// One thread calls Next and Reuse.
class RingFeed {
 public:
  // Returns the size of a ring for a load of `load_bytes`: at most `most_bytes`, but at least a
  // buffer for each batch in flight, and one more.
  static uint64_t RingBytes(uint64_t load_bytes, uint64_t most_bytes);

  // Starts to read. The source and the ring, whose size must be one of RingBytes, must outlive this
  // object.
  RingFeed(const LoadSource& source, char* ring, uint64_t ring_bytes);
  ~RingFeed();  // waits for reads in progress
  RingFeed(const RingFeed&) = delete;

  struct Batch {
    std::vector<LoadPart> parts;  // offsets in the ring; empty after the last part
    std::vector<size_t> buffers;  // no later batch needs these buffers
  };
  // Waits until an eighth of the buffers has been read, or as many as can be, and returns up to
  // `most` of their parts, from at most a quarter of the buffers. Returns the first error of a
  // read. Calls `go_on` at once and every 100 ms, and returns its error.
  Result<Batch> Next(size_t most, const std::function<Status()>& go_on);
  // Allows these buffers to be overwritten.
  void Reuse(const std::vector<size_t>& buffers);

 private:
  struct Filled {
    size_t buffer;
    std::vector<LoadPart> parts;
    size_t taken = 0;  // number of parts in earlier batches
  };
  void Fill();
  void FillOne(std::unique_lock<std::mutex>& lock);
  bool IsBatch() const;
  Batch Take(size_t most);

  const LoadSource& source_;
  char* const ring_;
  const size_t most_buffers_;  // of a batch
  // Of a batch, unless no more can be read: a request for each buffer would cost too much.
  const size_t least_buffers_;
  std::mutex mutex_;  // guards all below, except threads_
  std::condition_variable has_free_;
  std::condition_variable has_filled_;
  std::vector<size_t> free_;
  std::deque<Filled> filled_;
  size_t next_ = 0;     // item to read
  size_t reading_ = 0;  // items that are being read
  bool stop_ = false;
  Status error_;
  std::vector<Thread> threads_;
};

}  // namespace stasis::dataplane
