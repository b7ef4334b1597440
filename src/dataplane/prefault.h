// Memory of an arena's file, mapped; and its pages touched by several threads, in order, so that
// who uses it in order need not wait for the end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"

namespace stasis::dataplane {

// Shared, read and write.
class Mapping {
 public:
  // `reserve`: so many bytes of addresses at least are kept for Grow(), where there are so many.
  static Result<Mapping> Map(int fd, uint64_t bytes, uint64_t reserve = 0);
  // To `bytes` of the same file, with what is mapped already where it is. kResourceExhausted when
  // no addresses were kept for it, and nothing has changed.
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
  uint64_t reserved_ = 0;  // addresses that are ours
};

unsigned DefaultThreads();

// f(0) … f(count - 1), on so many threads.
void InParallel(size_t count, unsigned threads, const std::function<void(size_t)>& f);

// Makes every page of some parts of `base` present and writable, without changing what is in it.
// Works in the order of the parts; parts and pages are multiples of 4 KiB.
class Prefaulter {
 public:
  struct Part {
    uint64_t offset;
    uint64_t bytes;
  };
  Prefaulter(char* base, std::vector<Part> parts, unsigned threads);
  ~Prefaulter();  // stops where it is
  Prefaulter(const Prefaulter&) = delete;

  // Until part `index` is touched; kResourceExhausted when the kernel has no page for it.
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
  std::vector<size_t> left_;  // items of each part
  int error_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace stasis::dataplane
