// The record of an arena file: its owner and layout. It is written after the data, so that
// suspended data survives all Stasis processes and an interrupted write is recognised.
//
//   offset  bytes  little-endian
//        0      8  "STASISAR"
//        8      4  version: 1, or 2 with hashes; any other is rejected
//       12      4  flags: 1 complete, 2 checksum of the data present
//       16      4  pid            20   4  uid of the program's user
//       24      8  start time of the process (clock ticks since boot)
//       32      8  bytes of the arena file that hold data
//       40     16  checksum of those bytes (DataChecksum), or zero
//       56     40  boot id as text, padded with zeros
//       96     48  UUID of the GPU as text, padded with zeros
//      144      4  number of ranges   148  4  inode of the pid namespace of the pid
//      152   32 n  ranges: address, size, offset, stored bytes, eight bytes each
//   version 2: 16  id of the key of the hashes (base/block_hash.h)
//            16 b  hash of each block of kBlockBytes, range by range; zero for an all-zero
//                  block, which is not stored: the bytes at its place are undefined
//   at the end 16  XXH3-128 of everything before
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "dataplane/range.h"
#include "device/device_control.h"
#include "process/proc.h"

namespace stasis::dataplane {

// Identifies an arena: one process on one GPU.
struct ArenaKey {
  process::ProcessId process;
  device::GpuUuid gpu;
  auto operator<=>(const ArenaKey&) const = default;
};

// The hashes of the blocks of all ranges.
struct ArenaHashes {
  Id128 key;
  std::vector<Id128> blocks;

  // Returns one byte for each block: 1 if the block is all zero.
  std::vector<uint8_t> Zeros() const;
  bool operator==(const ArenaHashes&) const = default;
};

struct ArenaRecord {
  ArenaKey key;
  uid_t owner = 0;
  std::string boot_id;
  uint32_t pid_namespace = 0;  // inode number; the kernel uses 32 bits
  bool complete = false;
  bool has_checksum = false;
  Id128 checksum;
  uint64_t data_bytes = 0;
  std::vector<Range> ranges;
  std::optional<ArenaHashes> hashes;

  bool operator==(const ArenaRecord&) const = default;
};

inline constexpr uint32_t kArenaRecordVersion = 1;
inline constexpr uint32_t kArenaRecordVersionWithHashes = 2;

std::string Encode(const ArenaRecord& record);
// Returns kDataLoss with the reason for any input that Encode() cannot have written.
Result<ArenaRecord> DecodeArenaRecord(std::string_view data);

}  // namespace stasis::dataplane
