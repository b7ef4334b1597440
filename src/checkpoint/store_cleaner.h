// Removes from a store what a dump leaves there when it fails, and what it has no use for when it
// succeeds. A store may have stopped answering by then, and the machine may have no room for
// another process: so a child that is started with the dump does it, and is given up when the store
// stands still.
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

  // Each takes as long as the store goes on removing files; kDeadlineExceeded when it has removed
  // none for 20 s, and kCancelled after that.

  // As ImageWriter::Abort and ImageWriter::AfterCommit.
  Status Abort();
  Status RemoveLateFiles();
  // Deletes the image that was committed.
  Status DeleteImage();
  // Another process has committed the image: it may be read and deleted by others from now on.
  void NoteCommitted();

 private:
  StoreCleaner() = default;
  Status Ask(const char* what);
  std::unique_ptr<ImageProcess> process_;
};

}  // namespace stasis::checkpoint
