// The methods for the master key of encrypted repositories.
#include "api/methods.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/secret.h"
#include "repository/keys.h"

namespace stasis::api {
namespace {

using repository::FoundKey;

repository::KeySettings SettingsOf(const Call& call) {
  return {call.settings.key_file, call.settings.key_command};
}

std::string SourceName(FoundKey::Source source) {
  switch (source) {
    case FoundKey::Source::kFile:
      return "file";
    case FoundKey::Source::kCommand:
      return "command";
    case FoundKey::Source::kCredential:
      return "credential";
  }
  return "";
}

}  // namespace

Result<v1::CreateKeyResponse> CreateKey(Call& call, const v1::CreateKeyRequest& request) {
  STASIS_TRY(CheckAbsolute("the key file", request.file()));
  if (request.file().empty() && !call.settings.key_command.empty()) {
    return FailUsage(
        "the key comes from keys.command, so a key in the default file would not be used",
        "name a file with --out, and store its contents where the command reads them");
  }
  const std::string path = request.file().empty()
                               ? repository::KeyFilePath(SettingsOf(call), call.paths)
                               : request.file();
  auto key = repository::CreateKeyFile(path);
  if (!key) return Fail(std::move(key).error().WithContext("cannot create a key"));
  v1::CreateKeyResponse response;
  response.set_path(Utf8(path));
  response.set_key_id(key->id().Hex());
  return response;
}

Result<v1::ShowKeyResponse> ShowKey(Call& call, const v1::ShowKeyRequest&) {
  STASIS_ASSIGN(const FoundKey found, repository::FindKey(SettingsOf(call), call.paths));
  STASIS_ASSIGN(const auto joined, FindJoinedSecret(call.paths));
  v1::ShowKeyResponse response;
  response.set_key_id(found.key.id().Hex());
  response.set_source(SourceName(found.source));
  response.set_from(Utf8(found.from));
  response.set_joined(joined == found.key.NamingSecret());
  return response;
}

Result<v1::JoinKeyResponse> JoinKey(Call& call, const v1::JoinKeyRequest&) {
  STASIS_ASSIGN(const FoundKey found, repository::FindKey(SettingsOf(call), call.paths));
  STASIS_ASSIGN(const bool changed, JoinNamingSecret(call.paths, found.key.NamingSecret()));
  v1::JoinKeyResponse response;
  response.set_key_id(found.key.id().Hex());
  response.set_path(Utf8(NamingSecretPath(call.paths)));
  response.set_changed(changed);
  return response;
}

}  // namespace stasis::api
