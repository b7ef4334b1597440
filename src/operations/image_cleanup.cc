#include "operations/image_cleanup.h"

#include <fmt/format.h>

#include <utility>

namespace stasis::operations {

Result<std::unique_ptr<ImageCleanup>> ImageCleanup::Start(store::ImageWriter& writer,
                                                          const std::string& store,
                                                          std::string image) {
  std::unique_ptr<ImageCleanup> cleanup(new ImageCleanup(writer, store, std::move(image)));
  STASIS_ASSIGN(cleanup->cleaner_, checkpoint::StoreCleaner::Start(writer, store));
  return cleanup;
}

Result<std::string> ImageCleanup::RemoveFailedImage(bool commit_begun) {
  // True if the image was renamed to its final name, but the job's record could not be written.
  const bool committed = writer_.committed();
  const std::string what = committed ? image_ : writer_.partial_path();
  Status removed = committed ? cleaner_->DeleteImage() : cleaner_->Abort();
  if (removed && committed) removed = cleaner_->RemoveLateFiles();
  writer_.Abandon();
  if (removed) return std::string();
  if (removed.error().code != Code::kDeadlineExceeded) {
    return Fail(Annotate(std::move(removed), "remove " + what).error());
  }
  std::string left = fmt::format(
      "The program is as it was before. {} may be left{}. When the store answers again, `stasis "
      "image {}` removes it.",
      what, committed ? ", complete or hidden" : "", committed ? "delete" : "gc -d " + store_);
  if (commit_begun && !committed) {
    left +=
        fmt::format(" A folder {} without a manifest may be left too; it is not an image.", image_);
  }
  return left + " " + removed.error().message + ".";
}

std::string ImageCleanup::RemoveLateFiles() {
  const std::string late = writer_.late_path();
  Status removed = cleaner_->RemoveLateFiles();
  writer_.Abandon();
  if (removed) return {};
  return fmt::format(
      "{} is not needed but could not be removed: {}. `stasis image gc -d {}` removes it.", late,
      removed.error().ToString(), store_);
}

}  // namespace stasis::operations
