// A pack: one file of GPU blocks, each 4 KiB-aligned so that one direct read gets it, with an index
// at the end. docs/format/image.md has the layout. A pack never changes once it is finished, but
// that `gc` makes holes where blocks were that no image refers to.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "image/beneath.h"
#include "image/codec.h"
#include "image/direct_file.h"
#include "image/id128.h"
#include "image/limits.h"

namespace stasis::image {

inline constexpr uint32_t kPackVersion = 2;
inline constexpr uint32_t kOldestPackVersion = 1;

struct PackEntry {
  Id128 name;                  // block_name.h; never zero
  uint64_t offset = 0;         // in the pack, a multiple of 4096
  uint32_t stored_bytes = 0;   // 1 to 2 MiB
  uint32_t logical_bytes = 0;  // 1 to 2 MiB; equal to stored_bytes without a codec, else more
  Codec codec = Codec::kNone;
  Id128 checksum;  // XXH3-128 of the stored bytes

  // With the padding to the next block.
  uint64_t padded_bytes() const {
    return (uint64_t{stored_bytes} + kPackAlign - 1) / kPackAlign * kPackAlign;
  }
};

// Append may be called by several threads at once.
class PackWriter {
 public:
  // Takes a new, empty file and writes the header; ImageWriter::AddPack makes both. `path` names
  // the file in errors.
  static Result<PackWriter> Begin(UniqueFd fd, std::string path, const Id128& id);

  // Appends a block as it is. One whose name is in the pack already is not stored again.
  Status Append(const Id128& name, std::string_view block) {
    return Append(name, block, block.size(), Codec::kNone);
  }
  // `stored` is a block of `logical_bytes` bytes after `codec`.
  Status Append(const Id128& name, std::string_view stored, size_t logical_bytes, Codec codec);
  // Writes index and footer. The image's Commit syncs. Not while anybody appends.
  Status Finish();

  const Id128& id() const { return id_; }
  const std::vector<PackEntry>& entries() const { return entries_; }
  uint64_t blocks() const { return entries_.size(); }
  uint64_t bytes() const { return offset_; }         // of the file
  uint64_t stored_bytes() const { return stored_; }  // of its blocks

 private:
  PackWriter(UniqueFd fd, std::string path, const Id128& id)
      : file_(std::move(fd), std::move(path)), id_(id) {}
  Status WritePadded(std::string_view data, uint64_t offset) const;
  void Reserve();

  DirectFile file_;
  Id128 id_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // of what follows
  uint64_t offset_ = 0;
  uint64_t reserved_ = 0;  // the file's length meanwhile
  uint64_t stored_ = 0;
  std::vector<PackEntry> entries_;
  std::unordered_map<Id128, size_t, Id128Hash> by_name_;
};

// All but Open may be called by several threads at once.
class PackReader {
 public:
  // Reads and checks header, index and footer; kDataLoss names what is wrong, kUnimplemented a
  // version or codec that we do not read. `what` names the file in errors.
  static Result<PackReader> Open(OpenedFile file, const std::string& what);

  const Id128& id() const { return id_; }
  const Id128& index_checksum() const { return index_checksum_; }
  uint64_t size_bytes() const { return file_.size_bytes; }
  int fd() const { return file_.fd.get(); }
  const std::vector<PackEntry>& entries() const { return entries_; }
  // The entry of a block, or nullptr.
  const PackEntry* Find(const Id128& name) const;
  // One read, the checksum compared and the padding looked at: kDataLoss when something is not what
  // it was. `out` holds logical_bytes.
  Status Read(const PackEntry& entry, void* out) const;
  // As Read, but keeps nothing.
  Status Check(const PackEntry& entry) const;
  // Whether a part of any of these blocks is a hole of the file, as gc makes them. A block that we
  // wrote has none.
  bool AnyIsHole(std::vector<const PackEntry*> entries) const;

 private:
  PackReader(OpenedFile file, std::string what) : file_(std::move(file)), what_(std::move(what)) {}
  Status ReadHeader();
  Status ReadIndex();
  Status CheckEntry(const PackEntry& entry, uint64_t previous_end, uint64_t index_offset) const;
  Status CheckStored(const PackEntry& entry, std::string_view stored) const;
  Status Decompressed(const PackEntry& entry, std::string_view stored, void* out) const;
  tl::unexpected<Error> Damaged(const std::string& how) const;

  OpenedFile file_;
  std::string what_;
  uint32_t version_ = 0;
  Id128 id_;
  Id128 index_checksum_;
  std::vector<PackEntry> entries_;
  std::unordered_map<Id128, size_t, Id128Hash> by_name_;
};

}  // namespace stasis::image
