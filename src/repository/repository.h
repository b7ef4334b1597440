// An image repository: a set of objects below a prefix of an object store. This file reads and
// writes its small objects; push.h, pull.h, images.h and gc.h are the operations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "objects/object_store.h"
#include "repository/image_record.h"
#include "repository/layout.h"
#include "repository/limits.h"
#include "repository/record.h"
#include "repository/records.h"
#include "repository/sealing.h"

namespace stasis::repository {

// Creates an empty repository. Returns kAlreadyExists if there is one, and kInvalidArgument if
// there are other objects below the prefix.
Result<RepositoryInfo> CreateRepository(objects::ObjectStore& store, bool is_sealed,
                                        const std::string& parameters,
                                        const objects::CallOptions& call = {});
// Reads `repo`, which needs no key. Returns kNotFound if there is no repository.
Result<RepositoryInfo> ReadRepositoryInfo(objects::ObjectStore& store,
                                          const objects::CallOptions& call = {});

// Safe to use from any thread.
class Repository {
 public:
  // `store` and `sealing` must outlive this object and match `info`.
  Repository(objects::ObjectStore& store, RepositoryInfo info, const Sealing& sealing)
      : store_(store), info_(std::move(info)), sealing_(sealing) {}

  objects::ObjectStore& store() const { return store_; }
  const Sealing& sealing() const { return sealing_; }
  const RepositoryInfo& info() const { return info_; }
  // Returns the name for messages: "s3://bucket/prefix/images/llama".
  std::string NameOf(const std::string& key) const { return store_.Name() + "/" + key; }

  // Reads a record and checks that it belongs to this repository and this key. Returns kNotFound if
  // there is none, and kDataLoss if it is damaged or belongs elsewhere.
  Result<std::string> Read(RecordKind kind, const std::string& key,
                           const objects::CallOptions& call) const;
  Status Write(RecordKind kind, const std::string& key, std::string_view body,
               const objects::CallOptions& call) const;

  // Each of these reads a record like Read and decodes its body.
  Result<ImageRecord> ReadImage(const std::string& name, const objects::CallOptions& call) const;
  Result<std::vector<PackTable>> ReadPlace(const PushId& push,
                                           const objects::CallOptions& call) const;
  Result<NamesIndex> ReadNames(const PushId& push, const objects::CallOptions& call) const;
  Result<Pending> ReadPending(const PushId& push, const objects::CallOptions& call) const;
  Result<Condemned> ReadCondemned(const GcId& gc, const objects::CallOptions& call) const;

  // Lists all objects whose keys begin with `prefix`, in the order of their keys.
  Result<std::vector<objects::ObjectInfo>> List(const std::string& prefix,
                                                const objects::CallOptions& call) const;
  Result<bool> Exists(const std::string& key, const objects::CallOptions& call) const;

 private:
  objects::ObjectStore& store_;
  RepositoryInfo info_;
  const Sealing& sealing_;
};

// Returns everything that gcs are about to delete. A record that a gc removes meanwhile is ignored.
Result<References> ReadAllCondemned(const Repository& repository, const objects::CallOptions& call);

}  // namespace stasis::repository
