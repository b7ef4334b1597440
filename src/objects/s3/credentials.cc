#include "objects/s3/credentials.h"

#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "objects/printable.h"
#include "objects/s3/credential_files.h"
#include "objects/s3/credential_services.h"

namespace stasis::objects::s3 {
namespace {

// Credentials are refreshed this long before they expire.
constexpr int64_t kRefreshSeconds = 300;
// The maximum length of a value. No real source exceeds it.
constexpr size_t kMaxFieldBytes = 16 << 10;

int64_t NowSeconds() { return NowMs() / 1000; }

bool ValidFor(const Credentials& credentials, int64_t seconds) {
  return !credentials.expires || *credentials.expires > NowSeconds() + seconds;
}

std::string StringOf(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) return {};
  return found->get<std::string>();
}

}  // namespace

CredentialOptions CredentialOptionsOf(const char* const* environment) {
  CredentialOptions options;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals == entry.npos) continue;
    const std::string_view name = entry.substr(0, equals);
    const std::string_view value = entry.substr(equals + 1);
    if (name == "HOME") options.home = value;
    if (name.starts_with("AWS_")) options.environment[std::string(name)] = value;
  }
  return options;
}

std::optional<int64_t> ParseTime(const std::string& text) {
  tm utc{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  if (end == nullptr) return std::nullopt;
  if (*end == '.') {
    do {
      ++end;
    } while (*end >= '0' && *end <= '9');
  }
  const std::string_view zone = end;
  if (zone != "Z" && zone != "+00:00") return std::nullopt;
  return ::timegm(&utc);
}

Result<Credentials> ParseCredentialJson(const std::string& text, const std::string& what) {
  auto wrong = [&](const std::string& why) {
    return Fail(Code::kInvalidArgument, "the credentials from " + what + " cannot be used: " + why);
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return wrong("they are not a JSON object");
  if (const std::string code = StringOf(json, "Code"); !code.empty() && code != "Success") {
    return wrong("the code is " + Printable(code, 80));
  }
  Credentials credentials;
  credentials.source = what;
  credentials.key.key_id = StringOf(json, "AccessKeyId");
  credentials.key.secret = StringOf(json, "SecretAccessKey");
  credentials.key.token = StringOf(json, "SessionToken");
  if (credentials.key.token.empty()) credentials.key.token = StringOf(json, "Token");
  if (credentials.key.key_id.empty()) return wrong("AccessKeyId is missing");
  if (credentials.key.secret.empty()) return wrong("SecretAccessKey is missing");
  if (const std::string expires = StringOf(json, "Expiration"); !expires.empty()) {
    credentials.expires = ParseTime(expires);
    if (!credentials.expires) return wrong("Expiration is not a time in UTC");
  }
  return credentials;
}

Status CheckCredentials(const Credentials& credentials) {
  auto wrong = [&](const std::string& why) {
    return Fail(Code::kInvalidArgument,
                "the credentials from " + credentials.source + " cannot be used: " + why);
  };
  const SigningKey& key = credentials.key;
  for (const std::string* value : {&key.key_id, &key.secret, &key.token}) {
    if (value->size() > kMaxFieldBytes) return wrong("a value is too long");
    if (!std::all_of(value->begin(), value->end(), [](char c) { return c >= ' ' && c <= '~'; })) {
      return wrong("a value has a control character or is not ASCII");
    }
  }
  return {};
}

Found FromEnvironment(const CredentialOptions& options) {
  Credentials credentials;
  credentials.source = "the environment";
  credentials.key = {options.Variable("AWS_ACCESS_KEY_ID"),
                     options.Variable("AWS_SECRET_ACCESS_KEY"),
                     options.Variable("AWS_SESSION_TOKEN")};
  if (credentials.key.key_id.empty()) return std::nullopt;
  if (credentials.key.secret.empty()) {
    return Fail(Code::kInvalidArgument,
                "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not");
  }
  return credentials;
}

Result<Credentials> CredentialChain::Find(const CallOptions& call) {
  const ServiceCall service{options_, engine_, call};
  auto found = Found(std::nullopt);
  const bool chosen = !options_.profile.empty();
  if (!chosen) found = FromEnvironment(options_);
  if (found && !*found && !chosen) found = FromWebIdentity(service);
  if (found && !*found) found = FromFiles(service);
  if (found && !*found) found = FromContainer(service);
  if (found && !*found) found = FromMetadata(service);
  if (!found) return Fail(std::move(found).error().WithContext("get credentials for S3"));
  if (*found) {
    STASIS_TRY(CheckCredentials(**found));
    return std::move(**found);
  }
  return Fail(
      Code::kNotFound,
      "there are no credentials for S3 in the environment, in ~/.aws, from a container or "
      "from EC2",
      "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to ~/.aws/credentials");
}

Result<Credentials> CredentialChain::Get(const CallOptions& call) {
  const std::lock_guard lock(mutex_);
  if (current_ && ValidFor(*current_, kRefreshSeconds)) return *current_;
  auto found = Find(call);
  if (found) {
    current_ = std::move(*found);
    if (!ValidFor(*current_, 0)) {
      return Fail(Code::kPermissionDenied,
                  "the credentials from " + current_->source + " have expired",
                  "get new credentials, for example by logging in again");
    }
    return *current_;
  }
  // The source does not answer at present, but the earlier credentials have not expired yet.
  if (current_ && ValidFor(*current_, 0)) return *current_;
  return Fail(std::move(found).error());
}

void CredentialChain::Discard(const Credentials& credentials) {
  const std::lock_guard lock(mutex_);
  if (current_ && current_->key.key_id == credentials.key.key_id &&
      current_->key.token == credentials.key.token) {
    current_.reset();
  }
}

}  // namespace stasis::objects::s3
