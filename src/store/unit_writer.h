// Deduplicates and stores the units of a new image. GPU memory (block_writer.h) and CPU memory
// (page_writer.h) share this code.
//
// The units have positions from 0. The caller
//   1. calls Decide for each unit that is not zero, and Store for the new ones;
//   2. calls LinkEarlier, and Store for the units of packs that were not linked;
//   3. calls Finish, and Runs to describe the result in the manifest.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/codec_choice.h"
#include "store/earlier_units.h"
#include "store/image_writer.h"
#include "store/name_table.h"
#include "store/pack_linker.h"
#include "store/pack_set.h"
#include "store/unit_names.h"
#include "store/write_options.h"

namespace stasis::store {

class UnitWriter {
 public:
  // Where a unit is stored.
  enum class Kind : uint8_t {
    kZero,      // not stored: all its bytes are zero
    kNew,       // to be stored
    kRepeated,  // equal to the unit at position `number`
    kEarlier,   // in pack `pack` of earlier images, which may not be linked yet
    kLinked,    // in a linked pack
    kOwn,       // in a pack that was written for this image
    kAdopted,   // in a file of CRIU that became a pack
  };
  struct Unit {
    Kind kind = Kind::kZero;
    uint32_t pack = 0;
    uint32_t number = 0;
    uint32_t bytes = 0;
    PackUnit stored;  // its name, and its checksum if that is known
  };

  // Prepares for `units` units of `unit_bytes`. The arguments must outlive the object. For
  // `enough`, see EarlierUnits.
  static Result<std::unique_ptr<UnitWriter>> Begin(ImageWriter& writer, const UnitNames& names,
                                                   const WriteOptions& options, uint32_t unit_bytes,
                                                   size_t units, uint64_t enough);

  Unit& unit(size_t position) { return units_[position]; }
  size_t size() const { return units_.size(); }

  // Decides by the name of a unit whether it is kRepeated, kEarlier or kNew. Not thread-safe.
  Kind Decide(uint32_t position);
  // Links packs of earlier images for the kEarlier units for which `wanted` is true. These units
  // become kLinked or kNew.
  Status LinkEarlier(const std::function<bool(uint32_t position)>& wanted);
  // Stores units as one extent. `data` has their bytes one after the other. Safe to call from any
  // thread, for different units. Returns kDataLoss if a unit does not match its checksum.
  Status Store(std::span<const uint32_t> positions, std::string_view data);
  // Adds a file of CRIU that has become a pack. Returns the value for `pack` in the kAdopted units
  // of this file.
  uint32_t Adopt(Pack pack);

  // Finishes the packs. Call this before Runs.
  Status Finish();
  // Returns the runs of the units in [begin, end). Fails if one of them was not stored.
  Result<std::vector<UnitRun>> Runs(size_t begin, size_t end);
  // Returns packs, bytes and notes. Call this last.
  WrittenUnits Take() { return std::move(out_); }

  // Calls work(i) for i in [0, count) on several threads and returns the first error. `work` must
  // add the bytes that it has read to looked(), which is passed to the options' progress function.
  Status InParallel(size_t count, const std::function<Status(size_t)>& work);
  std::atomic<uint64_t>& looked() { return looked_; }

 private:
  UnitWriter(ImageWriter& writer, const WriteOptions& options, uint32_t unit_bytes, size_t units);

  ImageWriter& writer_;
  const WriteOptions& options_;
  const uint32_t unit_bytes_;
  std::vector<Unit> units_;
  NameTable positions_;  // by name
  EarlierUnits earlier_;
  PackLinker linker_;
  PackSet own_;
  CodecChoice codecs_;
  std::vector<Pack> adopted_;
  std::atomic<uint64_t> looked_{0};
  std::atomic<uint64_t> new_bytes_{0};
  WrittenUnits out_;
  uint32_t first_adopted_ = 0;  // in out_.packs
  uint32_t first_linked_ = 0;
};

}  // namespace stasis::store
