// Images that a migration sends through a repository (stasis migrate --via): PREFIX-1, PREFIX-2, …
// and PREFIX-last. The migration deletes them at its end. If it is killed, a note stays in the
// local store of images, by which a later command can delete them:
//
//   .PREFIX.sent-HEX/repository    the id of the repository
//   .PREFIX.sent-HEX/abandoned     empty; its time is that of the first sweep that found the note
//
// A note about a repository that this user has removed can never be used, and is removed too.
//
// The newest image may be the only copy of the program, because the user may have deleted the local
// images. It is deleted only if this store has it too, or has a newer image of the migration.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/id128.h"
#include "base/result.h"
#include "objects/object_store.h"
#include "repository/repository.h"
#include "store/image_folder.h"

namespace stasis::repository {

// A request of a push may take effect this long after the pushing process was killed or gave up.
inline constexpr std::chrono::minutes kLatePush{10};

class SentImages {
 public:
  // Creates the note. Call this before the first push. A sweep does not delete the images while
  // this object exists.
  static Result<SentImages> Begin(const std::string& store, const std::string& prefix,
                                  const Repository& repository);

  // A push has failed, so its image may still appear in the repository. Delete() keeps the note.
  void NotePushFailed() { push_failed_ = true; }

  // Deletes the images in the repository, then the note. Keeps PREFIX-last if `keeps_last` is set.
  // Keeps the note, for a sweep, after an error, or if an image is left or may still appear.
  Status Delete(const Repository& repository, bool keeps_last, const objects::CallOptions& call);

 private:
  SentImages(std::string store, std::string prefix, store::Hidden note)
      : store_(std::move(store)), prefix_(std::move(prefix)), note_(std::move(note)) {}

  std::string store_;
  std::string prefix_;
  store::Hidden note_;
  bool push_failed_ = false;
};

struct SweptImages {
  struct Failure {
    std::string what;  // the local store, or a prefix of images
    Error error;
  };
  std::vector<std::string> deleted;  // names of images
  std::vector<std::string> kept;     // likewise; each may be the only copy of a program
  std::vector<Failure> failures;
};

// Deletes the images that killed migrations of this store have left in the repository, and the
// notes of migrations that have none there and cannot get any more. After a failure it continues
// with the next migration. Returns an error only if the call was cancelled.
Result<SweptImages> SweepSentImages(const std::string& store, const Repository& repository,
                                    const objects::CallOptions& call, int64_t now_ms = NowMs());

// Removes the notes of this user's killed migrations through repositories other than `known`, and
// those that name none. The images stay in these repositories. Returns the names of the notes.
Result<std::vector<std::string>> ForgetSentImages(const std::string& store,
                                                  const std::vector<Id128>& known);

}  // namespace stasis::repository
