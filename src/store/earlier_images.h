// Images of a store with which a new image may share packs. Everything found here is a hint,
// because images come and go meanwhile: a pack is linked, locked and checked again before a new
// image refers to it (ImageWriter::LinkPack).
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"
#include "store/manifest.h"
#include "store/origin.h"

namespace stasis::store {

struct EarlierQuery {
  Id128 key_id;        // only names by this key mean anything to us
  std::string job_id;  // its images first, the newest first; empty: none
  uint32_t uid = 0;    // only images of programs of this user
  // Only images that this installation wrote: other packs may contain anything under the names that
  // they list. Without a key, all images.
  std::optional<OriginKey> origin;
};

struct EarlierImage {
  std::string name;
  UniqueFd folder;
  bool is_this_jobs = false;
  Manifest manifest;
};

class EarlierImages {
 public:
  // Skips images that belong to another user, have no packs or cannot be read. A store that does
  // not exist has none.
  static Result<EarlierImages> Look(const std::string& store, const EarlierQuery& query);

  size_t size() const { return images_.size(); }
  EarlierImage& operator[](size_t index) { return images_[index]; }
  const EarlierImage& operator[](size_t index) const { return images_[index]; }
  // Returns whether an image that was found still has its name.
  bool IsStillThere(size_t index) const;

 private:
  UniqueFd store_;
  std::vector<EarlierImage> images_;
};

// Finds the file of an image's pack. Returns nullopt if it is missing, belongs to another user, or
// has another length.
struct EarlierPackFile {
  FileId file;
  uint64_t occupied_bytes;  // on the disk
};
std::optional<EarlierPackFile> FindPackFile(const EarlierImage& image, const Pack& pack);

// Returns whether a pack could not be linked because the file system has no links or locks.
bool CannotShare(const Error& error);
// Returns whether a pack, or a part of it, is damaged or cannot be read from its disk.
bool IsDamage(const Error& error);
// The note for the user about a damaged pack of an earlier image.
std::string DamagedNote(const EarlierImage& image, const Pack& pack, const Error& error);

}  // namespace stasis::store
