// Finds images of a store with which a new image may share packs. All results are hints, because
// images may be created and deleted at any time: a pack is linked, locked and checked again before
// a new image refers to it (ImageWriter::LinkPack).
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
  Id128 key_id;        // of the unit names; names by other keys cannot be compared
  std::string job_id;  // images of this job come first; may be empty
  uint32_t uid = 0;    // only images of programs of this user
  // If not empty, only images that were written with one of these keys are used: the index of a
  // foreign pack might list names that do not match its contents.
  std::vector<OriginKey> origins;
};

struct EarlierImage {
  std::string name;
  UniqueFd folder;
  bool is_this_jobs = false;
  Manifest manifest;
};

class EarlierImages {
 public:
  // Skips images that belong to another user, have no packs or cannot be read. Newer images come
  // first. A missing store has no images.
  static Result<EarlierImages> Look(const std::string& store, const EarlierQuery& query);

  size_t size() const { return images_.size(); }
  EarlierImage& operator[](size_t index) { return images_[index]; }
  const EarlierImage& operator[](size_t index) const { return images_[index]; }
  // Returns whether the image with this index still exists under its name.
  bool IsStillThere(size_t index) const;

 private:
  UniqueFd store_;
  std::vector<EarlierImage> images_;
};

// FindPackFile finds the file of an image's pack. It returns nullopt if the file is missing,
// belongs to another user, or has another length.
struct EarlierPackFile {
  FileId file;
  uint64_t occupied_bytes;  // on the disk
};
std::optional<EarlierPackFile> FindPackFile(const EarlierImage& image, const Pack& pack);

// Returns whether a pack could not be linked because the file system supports no links or locks.
bool CannotShare(const Error& error);
// Returns whether a pack, or a part of it, is damaged or cannot be read from its disk.
bool IsDamage(const Error& error);
// Returns the note for the user about a damaged pack of an earlier image.
std::string DamagedNote(const EarlierImage& image, const Pack& pack, const Error& error);

}  // namespace stasis::store
