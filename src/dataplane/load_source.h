// GPU memory that a load reads from files, without an arena (MoverLink::LoadFrom).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/id128.h"
#include "base/result.h"

namespace stasis::dataplane {

// Bytes that follow each other in a buffer and in GPU memory.
struct LoadPart {
  uint64_t device_offset = 0;  // the ranges of the load follow one another from offset 0
  uint64_t bytes = 0;
  uint64_t buffer_offset = 0;  // of no meaning if `zero` is set
  bool zero = false;           // the memory is zero, and the buffer does not have it
};

// Work items that cover all ranges of a load. Safe to call from several threads.
class LoadSource {
 public:
  // The size of a buffer for any item.
  static constexpr uint64_t kItemBytes = 2u << 20;

  virtual ~LoadSource() = default;
  virtual size_t items() const = 0;
  // Reads an item to `buffer` and appends its parts. The bytes are not checked.
  virtual Status Read(size_t item, char* buffer, std::vector<LoadPart>& parts) const = 0;
  // Checks the loaded memory by the hashes of its blocks, range by range; zero for a zero block.
  // Returns kDataLoss if a block is wrong.
  virtual Status Check(std::vector<Id128> hashes) const = 0;
};

}  // namespace stasis::dataplane
