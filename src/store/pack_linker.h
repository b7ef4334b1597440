// Decides which packs of earlier images a new image shares, and adds hard links to them. Reads and
// checks units first if they were not checked recently.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/earlier_units.h"
#include "store/image_writer.h"
#include "store/manifest.h"
#include "store/pack.h"
#include "store/write_options.h"

namespace stasis::store {

// The units of an earlier pack that a new image needs.
struct NeededUnits {
  std::vector<uint32_t> numbers;  // in the pack
  std::set<uint32_t> images;      // refer to the units, so gc keeps them
  uint64_t bytes = 0;             // logical
};

class PackLinker {
 public:
  // Calls work(i) for i in [0, count) on several threads; returns the first error.
  using InParallel = std::function<Status(size_t count, const std::function<Status(size_t)>& work)>;

  // The arguments must outlive this object.
  PackLinker(ImageWriter& writer, const EarlierUnits& earlier, const WriteOptions& options,
             InParallel in_parallel)
      : writer_(writer),
        earlier_(earlier),
        options_(options),
        in_parallel_(std::move(in_parallel)),
        check_budget_(options.always_check_bytes) {}

  // Links the undamaged packs from which the image needs enough units, the most needed packs first.
  // `needed` has an entry for each earlier pack. Fails only if the options' progress function
  // cancels.
  Status Link(std::vector<NeededUnits>& needed, uint64_t looked_bytes);

  // The records of the linked packs for the manifest.
  std::vector<Pack>& packs() { return packs_; }
  // The index in packs() of an earlier pack; nullopt if it was not linked.
  std::optional<uint32_t> PlaceOf(uint32_t earlier_pack) const {
    return earlier_pack < places_.size() ? places_[earlier_pack] : std::nullopt;
  }
  uint64_t shared_bytes() const { return shared_bytes_; }
  // Notes for the user about packs that were not linked.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Result<bool> TryLink(uint32_t pack, NeededUnits& needed, Pack& linked);
  Status CheckReferences(const EarlierUnits::EarlierPack& pack, const PackReader& reader,
                         NeededUnits& needed, Pack& linked, uint32_t& damaged);

  ImageWriter& writer_;
  const EarlierUnits& earlier_;
  const WriteOptions& options_;
  const InParallel in_parallel_;
  uint64_t check_budget_;
  uint64_t shared_bytes_ = 0;
  std::vector<Pack> packs_;
  std::vector<std::optional<uint32_t>> places_;
  std::vector<std::string> notes_;
};

}  // namespace stasis::store
