// The distinct units of a local image, and the runs of them that make up its memory and files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "repository/image_record.h"
#include "store/image_reader.h"
#include "store/pack.h"

namespace stasis::repository {

class ImageUnits {
 public:
  // Opens all packs. `image` must outlive the object.
  static Result<ImageUnits> Open(const store::ImageReader& image);

  // A unit of a pack, or a part of a file.
  struct Item {
    uint32_t source;  // index into the manifest's packs, or the number of packs + index of a file
    uint32_t number;  // of the unit in the pack, or of the part in the file
    uint32_t bytes;
  };
  // Items that follow each other in a sequence and in items().
  struct Run {
    static constexpr uint32_t kZeros = ~0u;
    uint32_t first = kZeros;  // index into items()
    uint32_t units = 0;

    bool is_zero() const { return first == kZeros; }
  };

  // The items of packs come first, then those of files.
  const std::vector<Item>& items() const { return items_; }
  // The runs of each sequence, in the order of SequencesOf(manifest).
  const std::vector<std::vector<Run>>& runs() const { return runs_; }
  bool IsInPack(uint32_t item) const { return items_[item].source < packs_.size(); }
  // The name that the pack's index records. `item` must be in a pack.
  const Id128& RecordedName(uint32_t item) const;

  // An item, and where it belongs in a buffer.
  struct Target {
    uint32_t item;
    uint64_t at;
  };
  // Reads items into a buffer. Checks units of packs; returns kDataLoss if one is damaged. Safe to
  // call from any thread.
  Status Read(std::span<const Target> targets, char* buffer) const;

 private:
  explicit ImageUnits(const store::ImageReader& image) : image_(&image) {}
  Status OpenPacks();
  Status AddPackItems();
  void AddRuns();
  Status ReadPart(const Item& item, char* to) const;

  const store::ImageReader* image_;
  std::vector<store::PackReader> packs_;
  std::vector<std::vector<uint32_t>> item_of_;  // by pack and unit; kNone if it is not used
  std::vector<Item> items_;
  std::vector<std::vector<Run>> runs_;
};

}  // namespace stasis::repository
