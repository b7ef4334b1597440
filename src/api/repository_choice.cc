#include "api/repository_choice.h"

#include <unistd.h>

#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/secret.h"
#include "repository/pulled_origin.h"

namespace stasis::api {

using repository::OpenedRepository;
using repository::Registration;

repository::Access AccessOf(const Call& call) {
  return {.paths = call.paths,
          .keys = {call.settings.key_file, call.settings.key_command},
          // In a worker of the daemon, the environment no longer contains other users' variables.
          .credentials = objects::s3::CredentialOptionsOf(environ),
          .http = objects::s3::HttpOptionsOf(environ),
          .max_bytes_per_second = 0,
          .call = {Deadline(), call.stop}};
}

Result<bool> IsRepository(const Call& call, const std::string& name) {
  if (!repository::IsRepositoryName(name)) return false;
  auto found = repository::FindRegistration(call.paths, name);
  if (!found && found.error().code != Code::kNotFound) return Fail(std::move(found).error());
  return found.has_value();
}

Result<Registration> FindRepository(const Call& call, const v1::RepositoryChoice& choice) {
  const std::string& name =
      choice.name().empty() ? call.settings.default_repository : choice.name();
  if (name.empty()) {
    return FailUsage("no repository is named, and the configuration has no repository.default",
                     "name one with -R; `stasis repo ls` lists them");
  }
  const bool is_location = name.find('/') != name.npos;
  if (!is_location) {
    STASIS_ASSIGN(Registration found, repository::FindRegistration(call.paths, name));
    if (choice.plain() && found.encrypted) {
      return FailUsage("repository " + name + " is encrypted, so --plain does not apply");
    }
    return found;
  }
  STASIS_ASSIGN(const auto location, objects::ParseLocation(name));
  Registration at;
  at.name = at.location = location.ToString();
  at.encrypted = !choice.plain();
  if (location.kind == objects::Location::Kind::kS3) {
    const auto credentials = objects::s3::CredentialOptionsOf(environ);
    const auto first = [&](const char* one, const char* other) {
      const std::string value = credentials.Variable(one);
      return value.empty() ? credentials.Variable(other) : value;
    };
    at.endpoint = first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    at.region = first("AWS_REGION", "AWS_DEFAULT_REGION");
    at.ca_file = credentials.Variable("AWS_CA_BUNDLE");
  }
  return at;
}

Result<std::unique_ptr<OpenedRepository>> OpenRepository(const Call& call,
                                                         const v1::RepositoryChoice& choice,
                                                         const Deadline& deadline) {
  STASIS_ASSIGN(const Registration registration, FindRepository(call, choice));
  if (choice.max_bytes_per_second() != 0 && registration.location.front() == '/') {
    return FailUsage("the bandwidth of a repository in a folder cannot be limited",
                     "leave out --limit, which is for S3 only");
  }
  repository::Access access = AccessOf(call);
  access.max_bytes_per_second = choice.max_bytes_per_second();
  access.call.deadline = deadline;
  return OpenedRepository::Open(registration, access);
}

Result<std::optional<RemoteImage>> ParseRemoteImage(const Call& call, const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == text.npos || text.find('/', slash + 1) != text.npos) return std::nullopt;
  RemoteImage remote{text.substr(0, slash), text.substr(slash + 1)};
  STASIS_ASSIGN(const bool is_known, IsRepository(call, remote.repository));
  if (!is_known) return std::nullopt;
  return remote;
}

Result<repository::PullOptions> PullOptionsOf(const Call& call, const OpenedRepository& opened,
                                              const store::UnitNames& names) {
  STASIS_ASSIGN(const BlockSecret secret, BlockSecretOf(call.paths));
  repository::PullOptions options;
  options.names = &names;
  options.stop = call.stop;
  // The origin of an image stays unknown if its repository was not added.
  const Id128& origin_id = opened.registration().origin_id;
  if (!origin_id.IsZero()) options.origin = repository::PulledOrigin(secret, origin_id);
  STASIS_ASSIGN(options.write.origins, repository::SharableOrigins(call.paths));
  options.write.packs.bytes = call.settings.pack_bytes;
  return options;
}

v1::Repository ToMessage(const Registration& r) {
  v1::Repository message;
  message.set_name(r.name);
  message.set_location(Utf8(r.location));
  message.set_endpoint(Utf8(r.endpoint));
  message.set_region(Utf8(r.region));
  message.set_addressing(r.addressing);
  message.set_ca_file(Utf8(r.ca_file));
  message.set_profile(Utf8(r.profile));
  message.set_max_bytes_per_second(r.max_bytes_per_second);
  message.set_id(r.id.IsZero() ? "" : r.id.Hex());
  message.set_encrypted(r.encrypted);
  message.set_trusted(r.trusted);
  return message;
}

}  // namespace stasis::api
