// What the images of a store hold already: which block is in which pack. Looked up when a dump
// begins; what it says is a hint, for images come and go meanwhile. The pack is linked and locked,
// and looked at again, before anything relies on it (ImageWriter::LinkPack, block_writer.cc).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"
#include "image/manifest.h"

namespace stasis::store {

class EarlierBlocks {
 public:
  struct Query {
    image::Id128 key_id;  // only names by this key mean anything to us
    std::string job_id;   // its images first, the newest first; empty: none
    uint32_t uid = 0;     // only images of programs of this user
  };
  // Images and packs that belong to another user than ours, or cannot be read, are passed over; a
  // store that does not exist holds nothing.
  static Result<EarlierBlocks> Look(const std::string& store, const Query& query);
  EarlierBlocks() = default;

  struct Image {
    std::string name;
    UniqueFd folder;
    bool is_this_jobs = false;
    int64_t created_unix_ns = 0;
    std::unordered_map<uint32_t, int64_t> checked_unix_ns{};  // by pack: Pack::checked_unix_ns
  };
  struct EarlierPack {
    image::Pack pack;  // as the newest image says that refers to it
    FileId file;
    uint64_t occupied_bytes = 0;  // on the disk
  };
  struct Block {
    uint32_t image;  // whose reference makes sure that the block is there
    uint32_t pack;
    uint32_t logical_bytes;
  };
  // nullptr: no image has it.
  const Block* Find(const image::Id128& name, uint64_t logical_bytes) const;
  const Image& image(size_t index) const { return images_[index]; }
  const EarlierPack& pack(size_t index) const { return packs_[index]; }
  size_t blocks() const { return blocks_.size(); }
  // Whether an image that was found is still the image of that name.
  bool IsStillThere(size_t image) const;

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Found {
    Image image;
    image::Manifest manifest;
  };
  void Take(Found found);
  uint32_t TakePack(const Image& image, const image::Pack& pack);

  UniqueFd store_;
  std::vector<Image> images_;
  std::vector<EarlierPack> packs_;
  std::unordered_map<image::Id128, uint32_t, image::Id128Hash> pack_index_;
  std::unordered_map<image::Id128, Block, image::Id128Hash> blocks_;
};

}  // namespace stasis::store
