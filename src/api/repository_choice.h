// Opens the repository that a request names.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "api/call.h"
#include "base/deadline.h"
#include "base/result.h"
#include "repository/opened.h"
#include "repository/pull.h"
#include "repository/registry.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Returns the settings of the master key, and where this process finds credentials for S3.
repository::Access AccessOf(const Call& call);

// Returns whether a repository of this name was added. False for anything that is not a name.
Result<bool> IsRepository(const Call& call, const std::string& name);
// Finds the repository: one that was added (`repo add`), or the one at a location, with the
// endpoint and region from AWS's environment variables.
Result<repository::Registration> FindRepository(const Call& call,
                                                const v1::RepositoryChoice& choice);
// Finds and opens a repository. An empty name means the configuration's repository.default.
Result<std::unique_ptr<repository::OpenedRepository>> OpenRepository(
    const Call& call, const v1::RepositoryChoice& choice, const Deadline& deadline = Deadline());

// An image in a repository, as users name it: REPO/NAME.
struct RemoteImage {
  std::string repository;
  std::string name;
  bool plain = false;  // as in RepositoryChoice
};
// Returns nullopt unless the text before the only '/' is the name of a repository that was added.
// "./REPO/NAME" is always a path.
Result<std::optional<RemoteImage>> ParseRemoteImage(const Call& call, const std::string& text);

// Returns the options of a pull, without progress. `names` must outlive them.
Result<repository::PullOptions> PullOptionsOf(const Call& call,
                                              const repository::OpenedRepository& opened,
                                              const store::UnitNames& names);

// Opens the repository for the image of a dump, before the dump. Within a minute, checks that
// - the target is not a container,
// - the repository can be written,
// - it has no image called `name`, if `name` is not empty,
// - no damaged record prevents pushes,
// - unless `keeps_local`, the object store returns current lists and not cached ones.
Result<std::unique_ptr<repository::OpenedRepository>> OpenForDump(
    Call& call, const v1::RepositoryChoice& choice, const std::string& target,
    const std::string& name, bool keeps_local);
// Pushes to a repository that is open. See PushImage; the request's repository is not used.
Result<v1::OperationEvent> PushTo(Call& call, const repository::OpenedRepository& opened,
                                  const v1::PushImageRequest& request);

v1::Repository ToMessage(const repository::Registration& registration);

}  // namespace stasis::api
