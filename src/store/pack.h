// Writes and reads one pack. pack_index.h has the layout.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "store/beneath.h"
#include "store/direct_file.h"
#include "store/pack_index.h"

namespace stasis::store {

// Several threads may call Append at once.
class PackWriter {
 public:
  // `fd` is a new, empty file; ImageWriter::AddPack creates one. `path` names it in errors.
  PackWriter(UniqueFd fd, std::string path, const Id128& id, uint32_t unit_bytes);

  // Appends an extent. `stored` contains its units, of `logical_bytes` bytes together, compressed
  // with `codec`. Returns the number of its first unit.
  Result<uint32_t> Append(std::span<const PackUnit> units, std::string_view stored,
                          uint64_t logical_bytes, Codec codec);
  // Writes the index, but leaves the sync to ImageWriter::Commit. No other thread may append
  // meanwhile.
  Status Finish();

  const Id128& id() const { return index_.id; }
  uint64_t units() const { return index_.units.size(); }
  uint64_t stored_bytes() const { return stored_; }  // of its extents, without padding

 private:
  Status WritePadded(std::string_view data, uint64_t offset) const;
  void Reserve();

  DirectFile file_;
  std::mutex mutex_;  // guards all members below
  PackIndex index_;
  uint64_t reserved_ = 0;  // the length of the file until Finish
  uint64_t stored_ = 0;
};

// All methods but Open are safe to call from any thread.
class PackReader {
 public:
  // Reads and checks the index. Returns the errors of ReadPackIndex.
  static Result<PackReader> Open(OpenedFile file, const std::string& what);
  // Opens a file whose index has already been read.
  PackReader(OpenedFile file, std::string what, std::shared_ptr<const PackIndex> index)
      : file_(std::move(file)), what_(std::move(what)), index_(std::move(index)) {}

  const PackIndex& index() const { return *index_; }
  const Id128& id() const { return index_->id; }
  uint32_t units() const { return static_cast<uint32_t>(index_->units.size()); }
  uint64_t size_bytes() const { return file_.size_bytes; }
  int fd() const { return file_.fd.get(); }

  // Decompresses an extent to `out`, which must hold extent.logical_bytes. Checks the extent's
  // checksum and padding; the caller must check the units.
  Status ReadCompressed(const Extent& extent, char* out) const;
  // Returns kDataLoss if `data` does not have the checksum of the unit.
  Status CheckUnit(uint32_t unit, std::string_view data) const;
  // Returns kDataLoss if the padding at the end of an extent is not zero.
  Status CheckPadding(const Extent& extent, std::string_view padding) const;

 private:
  OpenedFile file_;
  std::string what_;
  std::shared_ptr<const PackIndex> index_;
};

}  // namespace stasis::store
