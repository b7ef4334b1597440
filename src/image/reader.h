// Reads an image: opening one looks at the manifest only, Verify looks at everything. An open image
// cannot be deleted by another stasis. The object may be used by several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "image/beneath.h"
#include "image/envelope.h"
#include "image/file_check.h"
#include "image/manifest.h"

namespace stasis::image {

enum class VerifyLevel : uint8_t {
  kPresence,      // every file there, of its length, and no other
  kAllButBlocks,  // and every byte, but for blocks and pages in packs: for who checks them as he
                  // reads
  kFull,          // and those
};

// One thing that is not as the manifest says.
struct Finding {
  std::string path;     // below the image
  std::string message;  // "is damaged between byte 0 and 16777216: ..."
};

struct VerifyReport {
  std::vector<Finding> findings;  // what is damaged or missing, by path; then what is too much
  uint64_t files = 0;
  uint64_t bytes = 0;  // read and compared
  double seconds = 0;

  bool ok() const { return findings.empty(); }
  // kDataLoss naming the first three findings and the number of others, when there are any.
  Status ToStatus(const std::string& image) const;
};

class PackReader;
class PagePackReader;

class ImageReader {
 public:
  // kExcluded: nobody deletes the image while the object lives. kAllowed: for a look at the
  // manifest, which must not stand in anybody's way.
  enum class Deletion : uint8_t { kExcluded, kAllowed };
  // kNotFound: no such folder. kInvalidArgument: no image, or a manifest that breaks a rule.
  // kDataLoss: a damaged manifest. kUnimplemented: a format that we do not read.
  static Result<std::unique_ptr<ImageReader>> Open(const std::string& path,
                                                   Deletion deletion = Deletion::kExcluded);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }
  // Of this image's format; kFormatVersion for what we write.
  uint32_t format_version() const { return format_version_; }
  // Whether the installation with this key wrote the manifest. nullptr: there is no such key.
  Origin OriginBy(const OriginKey* key) const;
  // Which key it was written with; nullopt for an image without an origin MAC.
  std::optional<Id128> origin_key_id() const;
  // The image's folder, for as long as this object lives.
  int dir_fd() const { return folder_.get(); }

  // Fails only when it could not look (kCancelled); what it saw is in the report.
  Result<VerifyReport> Verify(VerifyLevel level, const Progress& progress = nullptr) const;

  // A file that the manifest lists, of the length that it says.
  Result<OpenedFile> OpenFile(const std::string& path) const;
  // A pack that the manifest lists, and the very one: kDataLoss when it is another.
  Result<PackReader> OpenPack(const Pack& pack) const;
  Result<PagePackReader> OpenPagePack(const Pack& pack) const;
  // The folder with CRIU's images, to hand to CRIU.
  Result<UniqueFd> OpenCpuFolder() const;

 private:
  ImageReader(std::string path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  void FindStrays(std::vector<Finding>& findings) const;
  Result<uint64_t> VerifyBlocks(VerifyLevel level, const Progress& progress,
                                std::vector<Finding>& findings) const;
  Result<uint64_t> VerifyPages(VerifyLevel level, const Progress& progress,
                               std::vector<Finding>& findings) const;
  template <class Reader>
  Result<Reader> OpenPackAs(const Pack& pack) const;

  std::string path_;
  UniqueFd folder_;
  Manifest manifest_;
  uint32_t format_version_ = 0;
  std::optional<OriginOfFile> origin_;
};

}  // namespace stasis::image
