#include "repository/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hex.h"

namespace stasis::repository {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 63;
constexpr size_t kMaxTextBytes = 4096;
constexpr size_t kMaxRecordFileBytes = 64u << 10;
constexpr std::string_view kSuffix = ".json";

std::string FolderOf(const Paths& paths) { return paths.data + "/repositories"; }

std::string PathOf(const Paths& paths, const std::string& name) {
  return fmt::format("{}/{}{}", FolderOf(paths), name, kSuffix);
}

bool IsText(const std::string& text) {
  return text.size() <= kMaxTextBytes &&
         std::none_of(text.begin(), text.end(),
                      [](unsigned char c) { return c < ' ' || c == 127; });
}

tl::unexpected<Error> Wrong(std::string what, std::string hint = "") {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0, std::move(what), std::move(hint));
}

Status CheckName(const std::string& name) {
  if (IsRepositoryName(name)) return {};
  return Wrong(fmt::format("\"{}\" is not a valid name of a repository",
                           IsText(name) ? name.substr(0, 80) : "?"),
               fmt::format("A name is 1 to {} characters from a-z, 0-9, '.', '_' and '-', and "
                           "begins with a letter.",
                           kMaxNameBytes));
}

std::string Encode(const Registration& r) {
  const json document = {{"version", 1},
                         {"location", r.location},
                         {"endpoint", r.endpoint},
                         {"region", r.region},
                         {"addressing", r.addressing},
                         {"ca_file", r.ca_file},
                         {"profile", r.profile},
                         {"max_bytes_per_second", r.max_bytes_per_second},
                         {"id", r.id.Hex()},
                         {"encrypted", r.encrypted},
                         {"trusted", r.trusted},
                         {"origin_id", r.origin_id.Hex()}};
  return document.dump(2) + "\n";
}

// Returns zeros for a text that is not an id.
Id128 IdOf(const std::string& hex) {
  const std::string bytes = BytesOfHex(hex);
  return bytes.size() == Id128::kBytes ? Id128::FromRaw(bytes.data()) : Id128();
}

// Throws an exception of nlohmann::json for a missing or wrong field.
Registration Decode(const std::string& name, const json& document) {
  Registration r;
  r.name = name;
  document.at("location").get_to(r.location);
  document.at("endpoint").get_to(r.endpoint);
  document.at("region").get_to(r.region);
  document.at("addressing").get_to(r.addressing);
  document.at("ca_file").get_to(r.ca_file);
  document.at("profile").get_to(r.profile);
  document.at("max_bytes_per_second").get_to(r.max_bytes_per_second);
  document.at("encrypted").get_to(r.encrypted);
  document.at("trusted").get_to(r.trusted);
  r.id = IdOf(document.at("id").get<std::string>());
  r.origin_id = IdOf(document.at("origin_id").get<std::string>());
  return r;
}

Result<Registration> Load(const Paths& paths, const std::string& name) {
  const std::string path = PathOf(paths, name);
  STASIS_ASSIGN(const std::string text, ReadFile(path, kMaxRecordFileBytes));
  const auto damaged = [&](const std::string& why) {
    return Fail(
        Code::kDataLoss, fmt::format("the record of repository {} is damaged: {}", name, why),
        fmt::format("delete {} and add the repository again; images are not affected", path));
  };
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return damaged("it is not a JSON object");
  if (!document.contains("version") || document["version"] != 1) {
    return Fail(Code::kUnimplemented,
                fmt::format("the record of repository {} is of another version of Stasis", name),
                "update Stasis, or delete " + path);
  }
  try {
    Registration registration = Decode(name, document);
    if (registration.id.IsZero() || registration.origin_id.IsZero()) return damaged("it has no id");
    if (Status right = CheckRegistration(registration); !right)
      return damaged(right.error().message);
    return registration;
  } catch (const json::exception& error) {
    return damaged(error.what());
  }
}

Status CheckS3(const Registration& r) {
  const bool is_url = r.endpoint.starts_with("https://") || r.endpoint.starts_with("http://");
  if (!r.endpoint.empty() && !is_url) {
    return Wrong(
        fmt::format("the endpoint {} does not begin with https:// or http://", r.endpoint));
  }
  if (!r.addressing.empty() && r.addressing != "path" && r.addressing != "host") {
    return Wrong("the addressing is neither \"path\" nor \"host\"");
  }
  if (!r.ca_file.empty() && r.ca_file.front() != '/') {
    return Wrong(fmt::format("the certificate file {} is not an absolute path", r.ca_file));
  }
  return {};
}

}  // namespace

bool IsRepositoryName(std::string_view name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_allowed = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

Result<std::vector<std::string>> RegisteredNames(const Paths& paths) {
  std::vector<std::string> names;
  if (!PathExists(FolderOf(paths))) return names;
  STASIS_ASSIGN(const auto files, ListDir(FolderOf(paths)));
  for (const std::string& file : files) {
    if (!file.ends_with(kSuffix)) continue;
    const std::string name = file.substr(0, file.size() - kSuffix.size());
    if (IsRepositoryName(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status CheckRegistration(const Registration& r) {
  for (const std::string* text :
       {&r.location, &r.endpoint, &r.region, &r.addressing, &r.ca_file, &r.profile}) {
    if (!IsText(*text)) return Wrong("a value is too long or has control characters");
  }
  STASIS_ASSIGN(const auto location, objects::ParseLocation(r.location));
  if (location.kind == objects::Location::Kind::kS3) return CheckS3(r);
  if (r.endpoint.empty() && r.region.empty() && r.addressing.empty() && r.ca_file.empty() &&
      r.profile.empty() && r.max_bytes_per_second == 0) {
    return {};
  }
  return Wrong(
      fmt::format("{} is a folder, and endpoint, region, addressing, certificates, profile "
                  "and bandwidth limit are for S3 only",
                  r.location));
}

Result<Registration> FindRegistration(const Paths& paths, const std::string& name) {
  STASIS_TRY(CheckName(name));
  auto found = Load(paths, name);
  if (found || found.error().code != Code::kNotFound) return found;
  STASIS_ASSIGN(const auto names, RegisteredNames(paths));
  return Fail(Code::kNotFound, fmt::format("there is no repository {}", name),
              names.empty()
                  ? "`stasis repo add NAME LOCATION` adds one"
                  : fmt::format("there is {}; `stasis repo add` adds one", fmt::join(names, ", ")));
}

Result<std::vector<Registration>> ListRegistrations(const Paths& paths) {
  STASIS_ASSIGN(const auto names, RegisteredNames(paths));
  std::vector<Registration> all;
  for (const std::string& name : names) {
    auto registration = Load(paths, name);
    if (!registration && registration.error().code == Code::kNotFound) continue;  // removed
    if (!registration) return Fail(std::move(registration).error());
    all.push_back(std::move(*registration));
  }
  return all;
}

Status AddRegistration(const Paths& paths, const Registration& registration) {
  STASIS_TRY(CheckName(registration.name));
  STASIS_TRY(CheckRegistration(registration));
  const std::string path = PathOf(paths, registration.name);
  const std::string text = Encode(registration);
  STASIS_TRY(MakeDirs(FolderOf(paths)));
  STASIS_TRY(WriteNewFileDurably(path, text));
  // The file may have existed already, or another process may have written it meanwhile.
  STASIS_ASSIGN(const Registration there, Load(paths, registration.name));
  if (there == registration) return {};
  return Fail(Code::kAlreadyExists,
              fmt::format("there is a repository {} already, at {}", there.name, there.location),
              fmt::format("choose another name, or run `stasis repo remove {}` first", there.name));
}

Status RemoveRegistration(const Paths& paths, const std::string& name) {
  STASIS_TRY(CheckName(name));
  const std::string path = PathOf(paths, name);
  if (!PathExists(path)) {
    auto missing = FindRegistration(paths, name);
    if (!missing) return Fail(std::move(missing).error());
  }
  return RemoveFile(path);
}

}  // namespace stasis::repository
