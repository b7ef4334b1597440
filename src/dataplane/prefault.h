// Maps the file of an arena, and touches its pages with several threads in order, so that a
// sequential user can start before all pages are touched.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/thread.h"

namespace stasis::dataplane {

// A shared mapping for reading and writing.
class Mapping {
 public:
  // Reserves at least `reserve` bytes of addresses for Grow(), if available.
  static Result<Mapping> Map(int fd, uint64_t bytes, uint64_t reserve = 0);
  // Grows the mapping to `bytes` of the same file; mapped addresses stay the same. Returns
  // kResourceExhausted, with nothing changed, if too few addresses were reserved.
  Status Grow(int fd, uint64_t bytes);
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        reserved_(std::exchange(other.reserved_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t reserved_ = 0;  // size of the reserved addresses
};

// Makes every page of some parts of `base` present and writable without changing its content. Works
// in the order of the parts. Parts consist of whole pages of the kernel.
class Prefaulter {
 public:
  struct Part {
    uint64_t offset;
    uint64_t bytes;
  };
  // Starts up to `threads` threads.
  Prefaulter(char* base, std::vector<Part> parts, unsigned threads);
  ~Prefaulter();  // stops the work at once
  Prefaulter(const Prefaulter&) = delete;

  // Waits until part `index` is touched. Returns kResourceExhausted if the kernel has no page for
  // it.
  Status Wait(size_t index);

 private:
  struct Item {
    size_t part;
    uint64_t offset;
    uint64_t bytes;
  };
  void Work();

  char* const base_;
  std::vector<Item> items_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  std::condition_variable touched_;
  std::vector<size_t> left_;  // remaining items of each part
  int error_ = 0;
  std::vector<Thread> threads_;
};

}  // namespace stasis::dataplane
