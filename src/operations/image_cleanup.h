// Removes the files that a dump does not need from its store: the image after a failure, and late
// files after a success. The store may not answer; then the files stay, and sentences for the user
// name them.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "checkpoint/store_cleaner.h"
#include "store/image_writer.h"

namespace stasis::operations {

// Not thread-safe.
class ImageCleanup {
 public:
  // `writer` must have begun the image `image` in the folder `store`, and must outlive this object.
  static Result<std::unique_ptr<ImageCleanup>> Start(store::ImageWriter& writer,
                                                     const std::string& store, std::string image);

  // Call it when the image has been renamed to its final name.
  void NoteCommitted() { cleaner_->NoteCommitted(); }

  // Removes the image of a failed dump whose program is as it was before. Returns an empty string,
  // or, if the store does not answer, sentences about the files that may be left. `commit_begun`:
  // a folder without a manifest may exist under the image's name.
  Result<std::string> RemoveFailedImage(bool commit_begun);

  // Removes the late files of a complete image. Returns a sentence about files that cannot be
  // removed, or an empty string. Such a file is not an error, because the image is complete.
  std::string RemoveLateFiles();

  // Deletes the complete image. Returns the error if it cannot be removed.
  Status DeleteImage() { return cleaner_->DeleteImage(); }

 private:
  ImageCleanup(store::ImageWriter& writer, std::string store, std::string image)
      : writer_(writer), store_(std::move(store)), image_(std::move(image)) {}

  store::ImageWriter& writer_;
  const std::string store_;
  const std::string image_;
  std::unique_ptr<checkpoint::StoreCleaner> cleaner_;
};

}  // namespace stasis::operations
