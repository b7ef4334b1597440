// Images of a store that a new image may share packs with. What they say is a hint, for images come
// and go meanwhile: a pack is linked and locked, and looked at again, before anything relies on it
// (ImageWriter::LinkPack).
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"
#include "image/manifest.h"
#include "image/origin.h"

namespace stasis::store {

struct EarlierQuery {
  image::Id128 key_id;  // only names by this key mean anything to us
  std::string job_id;   // its images first, the newest first; empty: none
  uint32_t uid = 0;     // only images of programs of this user
  // Only images that this installation wrote: the packs of any other may hold anything under the
  // names that they list. Without a key, all.
  std::optional<image::OriginKey> origin;
};

struct EarlierImage {
  std::string name;
  UniqueFd folder;
  bool is_this_jobs = false;
  image::Manifest manifest;
};

class EarlierImages {
 public:
  // Images that belong to another user than ours, have no packs or cannot be read are passed over;
  // a store that does not exist holds none.
  static Result<EarlierImages> Look(const std::string& store, const EarlierQuery& query);

  size_t size() const { return images_.size(); }
  EarlierImage& operator[](size_t index) { return images_[index]; }
  const EarlierImage& operator[](size_t index) const { return images_[index]; }
  // Whether an image that was found is still the image of that name.
  bool IsStillThere(size_t index) const;

 private:
  UniqueFd store_;
  std::vector<EarlierImage> images_;
};

// The file that is an image's pack now; nullopt when it is not there, not ours, or of another
// length.
struct EarlierPackFile {
  FileId file;
  uint64_t occupied_bytes;  // on the disk
};
std::optional<EarlierPackFile> FindPackFile(const EarlierImage& image, const image::Pack& pack);

// Whether a pack could not be linked because links or locks cannot be had there at all.
bool CannotShare(const Error& error);
// What a user is told of an image whose pack was not what it should be.
std::string DamagedNote(const EarlierImage& image, const image::Pack& pack, const Error& error);

}  // namespace stasis::store
