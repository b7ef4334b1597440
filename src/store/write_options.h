// Options for writing the memory of a new image, and the result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/codec.h"
#include "store/manifest.h"
#include "store/origin.h"

namespace stasis::store {

struct PackLimits {
  // A new pack is started after this number of bytes. Large packs keep the number of packs small,
  // so later images need few links.
  uint64_t bytes = 128ull << 20;
  // The maximum number of packs. 0 means one for each processor, but at least 2 and at most 16.
  unsigned count = 0;
};

struct WriteOptions {
  Compression compression = Compression::kNone;
  bool share = true;   // false: every unit is written, even if an earlier image has it
  std::string job_id;  // images of this job are searched first
  uint32_t uid = 0;    // of the program; only images of the same user are searched
  // If not empty, only images written with one of these keys are searched.
  std::vector<OriginKey> origins;
  // Called with the bytes read so far; returns false to cancel (kCancelled).
  std::function<bool(uint64_t)> progress;

  // Units whose last write or comparison is older than this are read and checked before a new image
  // refers to them.
  int64_t trust_ns = 24ll * 3600 * 1'000'000'000;
  // Each dump checks units up to this number of bytes, however recent their last check.
  uint64_t always_check_bytes = 512ull << 20;
  size_t max_linked_packs = kMaxLinkedPacks;
  PackLimits packs;  // of GPU memory
};

// Returns the options for pages. All pages go to one pack of any size, so that later images need
// few links.
WriteOptions ForPages(WriteOptions options);

// The result of WriteBlocks or WritePages.
struct WrittenUnits {
  UnitNaming naming;
  std::vector<DeviceRange> ranges;   // with their runs, which are indexes into `packs`
  std::vector<PageFile> page_files;  // likewise with their runs
  std::vector<Pack> packs;
  uint64_t zero_bytes = 0;         // of zero units, which are not stored
  uint64_t new_bytes = 0;          // of units stored now, before compression
  uint64_t stored_bytes = 0;       // of the same units, as they are stored
  uint64_t shared_bytes = 0;       // of units that earlier images had, before compression
  uint64_t repeated_bytes = 0;     // of repetitions within this image
  std::vector<std::string> notes;  // for the user

  // Adds unit naming, ranges, page files and packs to the manifest.
  void DescribeIn(Manifest& manifest) const;
};

}  // namespace stasis::store
