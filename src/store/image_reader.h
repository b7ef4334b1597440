// Reads an image. Open reads only the manifest; Verify reads all files. No other stasis process can
// delete an open image, unless Deletion::kAllowed is chosen. Safe to use from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "store/beneath.h"
#include "store/envelope.h"
#include "store/file_check.h"
#include "store/manifest.h"

namespace stasis::store {

enum class VerifyLevel : uint8_t {
  kPresence,     // the image has exactly the recorded files, with the recorded lengths
  kAllButUnits,  // also the contents of files, but not units in packs, which every read checks
  kFull,         // also the units in packs
};

// One deviation from the manifest.
struct Finding {
  std::string path;     // below the image
  std::string message;  // "is damaged between byte 0 and 16777216: ..."
};

struct VerifyReport {
  std::vector<Finding> findings;  // damaged and missing files by path, then additional files
  uint64_t files = 0;
  uint64_t bytes = 0;  // read and compared
  double seconds = 0;

  bool ok() const { return findings.empty(); }
  // Returns kDataLoss with the first three findings and the number of others, if there are any.
  Status ToStatus(const std::string& image) const;
};

class PackReader;

class ImageReader {
 public:
  // kExcluded: the image cannot be deleted while the object exists. kAllowed: the image can be
  // deleted, because the caller reads only the manifest and must not block a deletion.
  enum class Deletion : uint8_t { kExcluded, kAllowed };
  // Returns kNotFound if there is no such folder, kInvalidArgument if it is not an image or its
  // manifest breaks a rule, kDataLoss if the manifest is damaged, and kUnimplemented if this Stasis
  // does not support its format.
  static Result<std::unique_ptr<ImageReader>> Open(const std::string& path,
                                                   Deletion deletion = Deletion::kExcluded);
  // Also opens an image whose GPU memory is elsewhere (Manifest::ranges_elsewhere), for a caller
  // that reads this memory from a RangeSource. Open refuses it with kFailedPrecondition.
  static Result<std::unique_ptr<ImageReader>> OpenWithoutRanges(const std::string& path);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }
  // Returns whether the installation with this key wrote the manifest. `key` may be nullptr.
  Origin OriginBy(const OriginKey* key) const;
  // The key of the origin MAC; nullopt if there is no MAC.
  std::optional<Id128> origin_key_id() const;
  // The image's folder, open while this object lives.
  int dir_fd() const { return folder_.get(); }

  // Fails only with kCancelled; all deviations are in the report.
  Result<VerifyReport> Verify(VerifyLevel level, const Progress& progress = nullptr) const;

  // Opens a file that the manifest lists, and checks its length.
  Result<OpenedFile> OpenFile(const std::string& path) const;
  // Opens a pack of the manifest. Returns kDataLoss if the file is not the recorded one.
  Result<PackReader> OpenPack(const Pack& pack) const;
  // Opens the folder with CRIU's files.
  Result<UniqueFd> OpenCpuFolder() const;

 private:
  ImageReader(std::string path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  static Result<std::unique_ptr<ImageReader>> OpenAny(const std::string& path, Deletion deletion);
  void FindStrays(std::vector<Finding>& findings) const;
  Result<uint64_t> VerifyUnits(VerifyLevel level, const Progress& progress,
                               std::vector<Finding>& findings) const;

  std::string path_;
  UniqueFd folder_;
  Manifest manifest_;
  std::optional<OriginOfFile> origin_;
};

}  // namespace stasis::store
