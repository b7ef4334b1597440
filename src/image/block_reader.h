// The blocks of an image, wherever they are: its packs opened, each block of a range found in one
// of them. Reads all formats. May be used by several threads; the ImageReader must outlive it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/pack.h"
#include "image/reader.h"

namespace stasis::image {

class BlockReader {
 public:
  // Fails with the first pack that is not what the manifest says; with `findings` such packs go
  // there, and their blocks are missing.
  static Result<BlockReader> Open(const ImageReader& image,
                                  std::vector<Finding>* findings = nullptr);

  struct Place {
    size_t pack;  // index into packs()
    const PackEntry* entry;
  };
  // Of block `index`, which is not zero, of a range of the image. kDataLoss when it is in no pack,
  // or with another length.
  Result<Place> Find(const DeviceRange& range, size_t index) const;
  // The block's bytes, checked; zeros for one that is zero. `out` holds BlockBytes.
  Status Read(const DeviceRange& range, size_t index, void* out) const;
  static uint64_t BlockBytes(const DeviceRange& range, size_t index);

  struct OpenedPack {
    std::string path;  // below the image
    std::optional<PackReader> reader;
  };
  const std::vector<OpenedPack>& packs() const { return packs_; }

 private:
  std::vector<OpenedPack> packs_;
};

}  // namespace stasis::image
