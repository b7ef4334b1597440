// Bounds on what a repository may claim. A reader checks them before it allocates anything, and a
// writer refuses to exceed them. They are part of the format (docs/format/repository.md).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/block_hash.h"

namespace stasis::repository {

inline constexpr uint32_t kFormatVersion = 1;

inline constexpr uint32_t kTagBytes = 16;               // after each sealed unit
inline constexpr uint64_t kMaxPackBytes = 64ull << 20;  // of the object
inline constexpr uint32_t kMaxUnitBytes = kBlockBytes;  // of a unit, without its tag
inline constexpr uint32_t kMaxPushPacks = 1024;         // described by one index
inline constexpr uint64_t kMaxPushUnits = 1ull << 22;   // likewise
inline constexpr uint64_t kMaxRecordBytes = 256ull << 20;
inline constexpr uint32_t kMaxImagePacks = 1u << 20;
inline constexpr uint64_t kMaxImageRuns = 1ull << 23;
inline constexpr uint64_t kMaxImageUnits = 1ull << 25;  // references to units in packs
// Limits of the groups of units (32 bytes each) and names (16 bytes each) that one process keeps in
// memory from the indexes that it reads. They are not part of the format. The factor 2 allows an
// image of kMaxImageUnits compressed units, which has a group for each unit, to use only half of
// the units in its packs.
inline constexpr uint64_t kMaxIndexGroups = 2 * kMaxImageUnits;
inline constexpr uint64_t kMaxIndexNames = 2 * kMaxImageUnits;
inline constexpr uint32_t kMaxParameterBytes = 64u << 10;  // of the sealing, in `repo`
inline constexpr uint32_t kMaxRecordKeyBytes = 512;

// Files of an image are stored in units of this size.
inline constexpr uint32_t kFileUnitBytes = kBlockBytes;

// A process that wrote a pending or condemned record relies on it for at most kRecordValid, by its
// own clock, and then writes the record again. Records that are older than kRecordAbandoned were
// left by a killed process. The difference covers requests that are delayed and clocks that
// disagree.
inline constexpr std::chrono::hours kRecordValid{1};
inline constexpr std::chrono::hours kRecordAbandoned{24};

}  // namespace stasis::repository
