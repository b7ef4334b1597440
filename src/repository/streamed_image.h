// An image of a repository that is restored without a local copy. Its files and CPU memory are
// pulled into a hidden folder; the memory of the GPUs is read while the program is restored.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "repository/image_record.h"
#include "repository/pull.h"
#include "repository/range_stream.h"
#include "repository/repository.h"
#include "store/image_folder.h"

namespace stasis::repository {

class StreamedImage {
 public:
  // Pulls into a hidden folder of `store`, which a sweep removes if this process is killed. The
  // errors are those of Pull. `repository` must outlive this object.
  static Result<std::unique_ptr<StreamedImage>> Open(const Repository& repository,
                                                     const std::string& name,
                                                     const std::string& store, PullOptions options);
  // Removes the folder.
  ~StreamedImage();
  StreamedImage(const StreamedImage&) = delete;

  // The image's path. Open it with ImageReader::OpenWithoutRanges.
  const std::string& path() const { return report_.path; }
  // The memory of the GPUs; nullptr if the image has none.
  const store::RangeSource* ranges() const {
    return stream_->record()->manifest.ranges.empty() ? nullptr : stream_.get();
  }
  // See RangeStream.
  void SetEarlier(std::shared_ptr<const ImageRecord> earlier) {
    stream_->SetEarlier(std::move(earlier));
  }
  // Reports the part that Open has pulled.
  const PullReport& report() const { return report_; }

 private:
  explicit StreamedImage(std::string store) : store_(std::move(store)) {}

  const std::string store_;
  store::Hidden hidden_;
  std::unique_ptr<RangeStream> stream_;
  PullReport report_;
};

}  // namespace stasis::repository
