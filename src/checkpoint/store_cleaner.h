// Removes the files of a failed dump from a store, and the late files of a successful one. A child
// process does the work and is abandoned if the store hangs. It is forked before the dump, because
// the machine may be unable to start another process afterwards.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "checkpoint/image_process.h"
#include "store/image_writer.h"

namespace stasis::checkpoint {

class StoreCleaner {
 public:
  // Forks the child. `writer` must have begun its image and must outlive this object. `store` names
  // the store in messages.
  static Result<std::unique_ptr<StoreCleaner>> Start(store::ImageWriter& writer, std::string store);

  // The calls below have no time limit as long as files are removed. If the store has removed no
  // file for 20 s, they return kDeadlineExceeded, and later calls return kCancelled.

  // See ImageWriter::Abort and ImageWriter::AfterCommit.
  Status Abort();
  Status RemoveLateFiles();
  // Deletes the committed image.
  Status DeleteImage();
  // Makes the child release its lock, so that other processes can read and delete the committed
  // image.
  void NoteCommitted();

 private:
  StoreCleaner() = default;
  Status Ask(const char* what);
  std::unique_ptr<ImageProcess> process_;
};

}  // namespace stasis::checkpoint
