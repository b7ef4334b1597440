// A pack: one file of GPU blocks, each 4 KiB-aligned so that one direct read gets it, with an index
// at the end. docs/format/image.md has the layout. Neither class is thread-safe, but Read may be
// called by several threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "image/beneath.h"
#include "image/id128.h"
#include "image/limits.h"

namespace stasis::image {

inline constexpr uint32_t kPackVersion = 1;

// How a block's stored bytes become its own.
enum class Codec : uint32_t { kNone = 0 };

struct PackEntry {
  Id128 name;                  // block_name.h; never zero
  uint64_t offset = 0;         // in the pack, a multiple of 4096
  uint32_t stored_bytes = 0;   // 1 to 2 MiB
  uint32_t logical_bytes = 0;  // 1 to 2 MiB; equal to stored_bytes without a codec
  Codec codec = Codec::kNone;
  Id128 checksum;  // XXH3-128 of the stored bytes
};

class PackWriter {
 public:
  // Takes a new, empty file and writes the header; ImageWriter::AddPack makes both. `path` names
  // the file in errors.
  static Result<PackWriter> Begin(UniqueFd fd, std::string path);

  // Appends a block. One whose name is in the pack already is not stored again.
  Status Append(const Id128& name, std::string_view block);
  // Writes index and footer. The image's Commit syncs.
  Status Finish();

  uint64_t blocks() const { return entries_.size(); }
  uint64_t bytes() const { return offset_; }

 private:
  PackWriter(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Status Write(std::string_view data);
  Status WritePadded(std::string_view data);

  UniqueFd fd_;
  std::string path_;
  uint64_t offset_ = 0;
  std::vector<PackEntry> entries_;
  std::unordered_map<Id128, size_t, Id128Hash> by_name_;
  std::string scratch_;
};

class PackReader {
 public:
  // Reads and checks header, index and footer; kDataLoss names what is wrong, kUnimplemented a
  // version or codec that we do not read. `what` names the file in errors.
  static Result<PackReader> Open(OpenedFile file, const std::string& what);

  const std::vector<PackEntry>& entries() const { return entries_; }
  // The entry of a block, or nullptr.
  const PackEntry* Find(const Id128& name) const;
  // One read, and the checksum compared: kDataLoss when it differs. `out` holds logical_bytes.
  Status Read(const PackEntry& entry, void* out) const;

 private:
  PackReader(OpenedFile file, std::string what) : file_(std::move(file)), what_(std::move(what)) {}
  Status ReadHeader();
  Status ReadIndex();
  Status CheckEntry(const PackEntry& entry, uint64_t previous_end, uint64_t index_offset) const;
  tl::unexpected<Error> Damaged(const std::string& how) const;

  OpenedFile file_;
  std::string what_;
  std::vector<PackEntry> entries_;
  std::unordered_map<Id128, size_t, Id128Hash> by_name_;
};

}  // namespace stasis::image
