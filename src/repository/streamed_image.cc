#include "repository/streamed_image.h"

#include <algorithm>

#include "base/file.h"
#include "repository/layout.h"
#include "store/beneath.h"
#include "store/image_reader.h"

namespace stasis::repository {

namespace {

bool HaveSameRanges(const store::Manifest& a, const store::Manifest& b) {
  return std::equal(a.ranges.begin(), a.ranges.end(), b.ranges.begin(), b.ranges.end(),
                    [](const store::DeviceRange& x, const store::DeviceRange& y) {
                      return x.address == y.address && x.size_bytes == y.size_bytes &&
                             x.block_bytes == y.block_bytes && x.gpu == y.gpu && x.pid == y.pid;
                    });
}

}  // namespace

Result<std::unique_ptr<StreamedImage>> StreamedImage::Open(const Repository& repository,
                                                           const std::string& name,
                                                           const std::string& store,
                                                           PullOptions options) {
  STASIS_TRY(store::CheckImageName(name));
  STASIS_TRY(MakeDirs(store));
  std::unique_ptr<StreamedImage> image(new StreamedImage(store));
  STASIS_ASSIGN(image->hidden_, store::MakeHidden(store, name, store::kPartial));
  options.without_ranges = true;
  STASIS_ASSIGN(image->report_,
                Pull(repository, name, store + "/" + image->hidden_.name, name, options));
  STASIS_ASSIGN(image->stream_,
                RangeStream::Open(repository, name, {options.deadline, options.stop}));
  // A push may have replaced the image meanwhile, and a hostile server may answer the two requests
  // differently. The arenas are allocated from the pulled manifest, so the ranges of the record
  // must be the same.
  STASIS_ASSIGN(const auto pulled, store::ImageReader::OpenWithoutRanges(image->path()));
  const store::Manifest& manifest = pulled->manifest();
  const store::Manifest& streamed = image->stream_->record()->manifest;
  if (manifest.image_id != streamed.image_id || !HaveSameRanges(manifest, streamed)) {
    return Fail(Code::kAborted, Domain::kImage, 0,
                repository.NameOf(ImageKey(name)) + " was replaced during the restore",
                "try again");
  }
  return image;
}

StreamedImage::~StreamedImage() {
  if (hidden_.name.empty()) return;
  // Errors are ignored, because a sweep removes the folder later.
  if (auto folder = store::OpenFolder(store_)) {
    (void)store::RemoveHidden(folder->get(), store_, hidden_.name);
  }
}

}  // namespace stasis::repository
