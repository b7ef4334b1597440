// An ObjectStore in a bucket of an S3 server: AWS, Ceph, MinIO and others.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "objects/object_store.h"
#include "objects/s3/credentials.h"
#include "objects/s3/http_engine.h"
#include "objects/s3/s3_error.h"

namespace stasis::objects::s3 {

struct S3Options {
  // "https://host[:port]", or "http://..." where the network is trusted. If empty, AWS's endpoint
  // for the region is used.
  std::string endpoint;
  std::string region = "us-east-1";
  // Puts the bucket into the path instead of the host name. If not set, this is done if `endpoint`
  // is set, and for bucket names with dots, because no wildcard certificate covers such names.
  std::optional<bool> path_style;
  // `http.connections` is the total of all engines.
  HttpOptions http;
  int engines = 2;  // threads; each moves 1 to 2 GB/s. One is used if bandwidth is limited
  CredentialOptions credentials;
  // Leaves the body of a PUT out of the signature, which saves 0.5 s of CPU time per GB. The server
  // then does not notice a damaged body.
  bool unsigned_payload = false;
  int max_attempts = 10;
  // The delay before a retry is chosen at random below a bound, which grows from this value to
  // `max_retry_delay`.
  std::chrono::milliseconds first_retry_delay{100};
  std::chrono::milliseconds max_retry_delay{20'000};
};

class S3Store final : public ObjectStore {
 public:
  // `prefix` is empty or a valid key, below which all keys of this store are. Sends no request.
  static Result<std::unique_ptr<S3Store>> Open(const std::string& bucket, const std::string& prefix,
                                               S3Options options);

  Status Put(const std::string& key, std::span<const std::string_view> parts,
             const CallOptions& call = {}) override;
  Status Get(const std::string& key, uint64_t offset, uint64_t bytes, Sink& sink,
             const CallOptions& call = {}) override;
  Result<std::string> GetWhole(const std::string& key, uint64_t max_bytes,
                               const CallOptions& call = {}) override;
  Result<ListPage> List(const std::string& prefix, const std::string& start_after, uint32_t limit,
                        const CallOptions& call = {}) override;
  Status Delete(const std::string& key, const CallOptions& call = {}) override;
  // An S3 server keeps nothing of an interrupted PUT.
  Result<uint64_t> RemoveLeftovers(std::chrono::seconds older_than,
                                   const CallOptions& call = {}) override;
  std::string Name() const override;
  Counters counters() const override;

 private:
  struct Request;
  struct Attempt;
  struct Download;

  S3Store(std::string bucket, std::string prefix, S3Options options)
      : bucket_(std::move(bucket)), prefix_(std::move(prefix)), options_(std::move(options)) {}
  Status Start();
  std::string FullKey(const std::string& key) const;
  std::string ObjectName(const std::string& key) const;
  HttpEngine& IdleEngine();
  // Sends a request until it succeeds, has an error that a retry cannot fix, or no attempts or time
  // are left.
  Result<HttpAnswer> Send(Request& request, const CallOptions& call);
  Attempt TryOnce(Request& request, const CallOptions& call);
  HttpRequest Prepare(const Request& request, const Credentials& credentials, int64_t now,
                      const CallOptions& call) const;
  Status CheckExists(const std::string& key, uint64_t offset, const CallOptions& call);
  // Waits before the next attempt. Returns false if there is no time for one.
  bool WaitForRetry(int attempt, bool slowly, const CallOptions& call) const;

  const std::string bucket_;
  const std::string prefix_;  // empty, or ends in a slash
  const S3Options options_;
  std::string scheme_;
  std::string host_;       // with the port, and with the bucket unless `path_style_`
  std::string base_path_;  // "/" or "/bucket/"
  bool path_style_ = false;
  std::vector<std::unique_ptr<HttpEngine>> engines_;
  std::unique_ptr<CredentialChain> credentials_;
  mutable std::mutex mutex_;
  Counters counters_;
};

}  // namespace stasis::objects::s3
