// Finds credentials for S3 where AWS's own tools find them, and refreshes them before they expire.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "objects/object_store.h"
#include "objects/s3/http_engine.h"
#include "objects/s3/sigv4.h"

namespace stasis::objects::s3 {

struct Credentials {
  SigningKey key;
  std::optional<int64_t> expires;  // Unix time in seconds; absent if they do not expire
  std::string source;              // for messages: "the environment"
};

// Where to look. Nothing is read from the environment of this process, because a daemon's differs
// from its caller's; see CredentialOptionsOf().
struct CredentialOptions {
  // The user's AWS_* variables.
  std::map<std::string, std::string> environment;
  std::string home;     // for ~/.aws; if empty, only files named by variables are read
  std::string profile;  // in place of AWS_PROFILE
  std::string region;   // of the regional endpoint of STS
  // The well-known addresses of the services. Tests replace them.
  std::string metadata_endpoint = "http://169.254.169.254";
  std::string container_endpoint = "http://169.254.170.2";

  // Returns the value of a variable in `environment`, or an empty string.
  std::string Variable(const char* name) const {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  }
};

// Takes HOME and the AWS_* variables from a list of NAME=VALUE that ends with nullptr.
CredentialOptions CredentialOptionsOf(const char* const* environment);

// Tries these sources in order and uses the first that is configured:
// 1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; skipped if a profile was
// chosen
// 2. AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, exchanged at STS; likewise
// 3. the profile in ~/.aws/credentials and ~/.aws/config: keys, credential_process, web identity
// 4. AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI (ECS, EKS Pod Identity)
// 5. the metadata service of EC2, version 2
// A source that is configured and fails is an error; later sources are then not tried.
//
// Safe to use from any thread. One thread refreshes, others wait for it.
class CredentialChain {
 public:
  // `engine` must outlive this object.
  CredentialChain(CredentialOptions options, HttpEngine& engine)
      : options_(std::move(options)), engine_(engine) {}

  // Returns credentials that are still valid for some minutes. Returns kNotFound if no source is
  // configured; the message lists the places that were searched.
  Result<Credentials> Get(const CallOptions& call);
  // Call this if the server rejects these credentials as expired. The next Get() then reads new
  // ones.
  void Discard(const Credentials& credentials);

 private:
  Result<Credentials> Find(const CallOptions& call);

  const CredentialOptions options_;
  HttpEngine& engine_;
  std::mutex mutex_;
  std::optional<Credentials> current_;
};

// Returns kInvalidArgument if a value is longer than 16 KiB, or is not printable ASCII: values go
// into headers of requests, and must not begin another header.
Status CheckCredentials(const Credentials& credentials);

// Each function looks for credentials in one of the sources above, and returns nullopt if the
// source is not configured.
using Found = Result<std::optional<Credentials>>;
Found FromEnvironment(const CredentialOptions& options);

// The functions for the other sources are in credential_files.h and credential_services.h.

// Parses "2026-11-25T22:00:00Z", optionally with fractions of a second. Returns nullopt otherwise.
std::optional<int64_t> ParseTime(const std::string& text);

// Parses the JSON of credential_process, containers and the metadata service. `what` names the
// source in errors.
Result<Credentials> ParseCredentialJson(const std::string& json, const std::string& what);

}  // namespace stasis::objects::s3
