// Images that a migration sends through a repository (stasis migrate --via): PREFIX-1, PREFIX-2, …
// and PREFIX-last. The migration deletes them at its end. If it is killed, a note in the local
// store of images is left, and lets a later command delete them:
//
//   .PREFIX.sent-HEX/repository    the id of the repository
//
// None of them is the only copy of the program, because the newest local image stays
// (store/store_folder.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "objects/object_store.h"
#include "repository/repository.h"
#include "store/image_folder.h"

namespace stasis::repository {

class SentImages {
 public:
  // Makes the note. Call it before the first push. A sweep leaves the images alone while this
  // object exists.
  static Result<SentImages> Begin(const std::string& store, const std::string& prefix,
                                  const Repository& repository);

  // Deletes the images in the repository, then the note. After an error the note stays.
  Status Delete(const Repository& repository, const objects::CallOptions& call);

 private:
  SentImages(std::string store, std::string prefix, store::Hidden note)
      : store_(std::move(store)), prefix_(std::move(prefix)), note_(std::move(note)) {}

  std::string store_;
  std::string prefix_;
  store::Hidden note_;
};

// Deletes the images that killed migrations of this store have left in the repository. Returns
// their names.
Result<std::vector<std::string>> SweepSentImages(const std::string& store,
                                                 const Repository& repository,
                                                 const objects::CallOptions& call);

}  // namespace stasis::repository
