// Opens repositories: opens the object store, finds the key, and checks that the repository is the
// one that the user expects.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/paths.h"
#include "base/result.h"
#include "objects/object_store.h"
#include "objects/s3/credentials.h"
#include "repository/keys.h"
#include "repository/registry.h"
#include "repository/repository.h"
#include "repository/sealing.h"

namespace stasis::repository {

// The caller's settings for opening a repository.
struct Access {
  const Paths& paths;
  KeySettings keys;
  // Sources of credentials for S3. A registration's region and profile replace the ones set here.
  objects::s3::CredentialOptions credentials;
  objects::s3::HttpOptions http = {};  // a registration's certificates replace the ones set here
  // Replaces the registration's limit if it is not 0.
  uint64_t max_bytes_per_second = 0;
  objects::CallOptions call;  // limits for opening
  int s3_engines = 0;         // replaces S3Options::engines if it is not 0
};

class OpenedRepository {
 public:
  // Sends one request. Returns kPermissionDenied if the master key does not match or the repository
  // was replaced by another one, kNotFound if there is no repository or no master key, and the
  // errors of the object store.
  static Result<std::unique_ptr<OpenedRepository>> Open(const Registration& registration,
                                                        const Access& access);

  struct Created {
    std::string warning;                 // for the user; empty: none
    bool created = false;                // false: the repository existed
    std::optional<Id128> master_key_id;  // of an encrypted one
  };
  // Opens the repository at registration.location, or creates it if there is none, and sets
  // registration.id and origin_id. Returns kFailedPrecondition if it exists and is encrypted
  // although registration.encrypted is false, or the other way round.
  static Result<Created> Create(Registration& registration, const Access& access);

  const Repository& repository() const { return repository_; }
  objects::ObjectStore& store() const { return *store_; }
  const Registration& registration() const { return registration_; }

 private:
  OpenedRepository(Registration registration, std::unique_ptr<objects::ObjectStore> store,
                   std::unique_ptr<Sealing> sealing, RepositoryInfo info)
      : registration_(std::move(registration)),
        store_(std::move(store)),
        sealing_(std::move(sealing)),
        repository_(*store_, std::move(info), *sealing_) {}

  const Registration registration_;
  const std::unique_ptr<objects::ObjectStore> store_;
  const std::unique_ptr<Sealing> sealing_;
  const Repository repository_;
};

}  // namespace stasis::repository
