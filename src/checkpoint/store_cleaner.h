// Removes the files of a failed dump from a store, and the late files of a successful one. By then
// the store may have stopped answering, and the machine may be unable to start another process. So
// a child process that is started with the dump does the work, and is abandoned if the store hangs.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "checkpoint/image_process.h"
#include "store/image_writer.h"

namespace stasis::checkpoint {

class StoreCleaner {
 public:
  // Forks. `writer` has begun its image and outlives this object; `store` is for messages.
  static Result<std::unique_ptr<StoreCleaner>> Start(store::ImageWriter& writer, std::string store);

  // Each call may last while the store keeps removing files. Returns kDeadlineExceeded if it has
  // removed none for 20 s, and kCancelled after that.

  // See ImageWriter::Abort and ImageWriter::AfterCommit.
  Status Abort();
  Status RemoveLateFiles();
  // Deletes the committed image.
  Status DeleteImage();
  // Tells the child that the image is committed, so that others may read and delete it.
  void NoteCommitted();

 private:
  StoreCleaner() = default;
  Status Ask(const char* what);
  std::unique_ptr<ImageProcess> process_;
};

}  // namespace stasis::checkpoint
