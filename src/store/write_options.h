// How the memory of a new image is written, and what was written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "store/codec.h"
#include "store/manifest.h"
#include "store/origin.h"

namespace stasis::store {

struct PackLimits {
  // Another pack is begun for each so many bytes: a program that changes little stays in few packs,
  // which later images link to.
  uint64_t bytes = 128ull << 20;
  // At most so many; 0: one for each processor, 2 to 16.
  unsigned count = 0;
};

struct WriteOptions {
  Compression compression = Compression::kNone;
  bool share = true;                // false: every unit is written, even if an earlier image has it
  std::string job_id;               // whose images are looked at first
  uint32_t uid = 0;                 // of the program; only images of the same user are looked at
  std::optional<OriginKey> origin;  // share only with images written with it; without it, with all
  // Called with the bytes looked at so far; returns false to cancel (kCancelled).
  std::function<bool(uint64_t)> progress;

  // A pack whose units were written or compared longer ago than this is read before a new image
  // refers to it, …
  int64_t trust_ns = 24ll * 3600 * 1'000'000'000;
  // … and other packs too, up to so many bytes in one dump.
  uint64_t always_check_bytes = 512ull << 20;
  size_t max_linked_packs = kMaxLinkedPacks;
  PackLimits packs;  // of GPU memory
};

// The result of WriteBlocks or WritePages.
struct WrittenUnits {
  UnitNaming naming;
  std::vector<DeviceRange> ranges;   // with their runs, which are indexes into `packs`
  std::vector<PageFile> page_files;  // likewise
  std::vector<Pack> packs;
  uint64_t zero_bytes = 0;         // of zero units, which are stored nowhere
  uint64_t new_bytes = 0;          // of units stored now, before compression
  uint64_t stored_bytes = 0;       // of the same units, as they are stored
  uint64_t shared_bytes = 0;       // of units that earlier images had, before compression
  uint64_t repeated_bytes = 0;     // of repetitions within this image
  std::vector<std::string> notes;  // for the user

  // Adds naming, ranges, files and packs to the manifest.
  void DescribeIn(Manifest& manifest) const;
};

}  // namespace stasis::store
