#include "repository/opened.h"

#include <fmt/format.h>

#include "objects/location.h"
#include "repository/encrypted_sealing.h"
#include "repository/seal.h"

namespace stasis::repository {
namespace {

objects::s3::S3Options S3OptionsOf(const Registration& registration, const Access& access) {
  objects::s3::S3Options options;
  options.endpoint = registration.endpoint;
  if (!registration.region.empty()) options.region = registration.region;
  if (!registration.addressing.empty()) options.path_style = registration.addressing == "path";
  options.http = access.http;
  if (access.s3_engines != 0) options.engines = access.s3_engines;
  if (!registration.ca_file.empty()) options.http.ca_file = registration.ca_file;
  options.http.max_bytes_per_second = access.max_bytes_per_second != 0
                                          ? access.max_bytes_per_second
                                          : registration.max_bytes_per_second;
  options.credentials = access.credentials;
  options.credentials.region = options.region;
  if (!registration.profile.empty()) options.credentials.profile = registration.profile;
  return options;
}

Result<std::unique_ptr<objects::ObjectStore>> OpenStore(const Registration& registration,
                                                        const Access& access) {
  STASIS_TRY(CheckRegistration(registration));
  STASIS_ASSIGN(const auto location, objects::ParseLocation(registration.location));
  return objects::OpenObjectStore(location, S3OptionsOf(registration, access));
}

// Returns the sealing of the repository, after it has checked that the master key is the right one.
Result<std::unique_ptr<Sealing>> SealingOf(const RepositoryInfo& info, const MasterKey* key,
                                           const std::string& name) {
  if (!info.is_sealed) return PlainSealing();
  STASIS_TRY(CheckKnownText(*key, info.parameters, "repository " + name));
  return EncryptedSealing(*key);
}

Status CheckSame(const Registration& registration, const RepositoryInfo& info,
                 const std::string& name) {
  if (!registration.id.IsZero() && registration.id != info.id) {
    return Fail(Code::kPermissionDenied, Domain::kImage, 0,
                fmt::format("the repository at {} is not the one that was added as {}: its id is "
                            "{}, but the added repository has {}",
                            name, registration.name, info.id.Hex(), registration.id.Hex()),
                fmt::format("If you replaced it yourself, run `stasis repo remove {}` and add it "
                            "again.",
                            registration.name));
  }
  if (registration.encrypted == info.is_sealed) return {};
  return Fail(Code::kFailedPrecondition, Domain::kImage, 0,
              fmt::format("the repository at {} is {}", name,
                          info.is_sealed ? "encrypted"
                                         : "not encrypted: its server can read and "
                                           "change all images"),
              info.is_sealed ? "Omit --plain." : "If that is intended, say so with --plain.");
}

}  // namespace

Result<std::unique_ptr<OpenedRepository>> OpenedRepository::Open(const Registration& registration,
                                                                 const Access& access) {
  STASIS_ASSIGN(auto store, OpenStore(registration, access));
  STASIS_ASSIGN(RepositoryInfo info, ReadRepositoryInfo(*store, access.call));
  STASIS_TRY(CheckSame(registration, info, store->Name()));
  std::optional<FoundKey> found;
  if (info.is_sealed) {
    STASIS_ASSIGN(found, FindKey(access.keys, access.paths));
  }
  STASIS_ASSIGN(auto sealing, SealingOf(info, found ? &found->key : nullptr, store->Name()));
  return std::unique_ptr<OpenedRepository>(
      new OpenedRepository(registration, std::move(store), std::move(sealing), std::move(info)));
}

Result<OpenedRepository::Created> OpenedRepository::Create(Registration& registration,
                                                           const Access& access) {
  Created result;
  std::optional<FoundKey> found;
  if (registration.encrypted) {
    STASIS_ASSIGN(found, FindKey(access.keys, access.paths));
    result.master_key_id = found->key.id();
  }
  STASIS_ASSIGN(const auto store, OpenStore(registration, access));
  auto info = ReadRepositoryInfo(*store, access.call);
  if (!info && info.error().code == Code::kNotFound) {
    std::string known_text;
    if (found) {
      STASIS_ASSIGN(known_text, SealKnownText(found->key));
    }
    STASIS_TRY(CreateRepository(*store, registration.encrypted, known_text, access.call));
    // Read the record that exists now: another host may have created a repository there at the same
    // time.
    info = ReadRepositoryInfo(*store, access.call);
    result.created = true;
  }
  if (!info) return Fail(std::move(info).error());
  STASIS_TRY(CheckSame(registration, *info, store->Name()));
  STASIS_TRY(SealingOf(*info, found ? &found->key : nullptr, store->Name()));
  if (const Status lists = store->CheckLists(); !lists) {
    result.warning = lists.error().ToString() + "; " + lists.error().hint;
  }
  registration.id = info->id;
  STASIS_ASSIGN(registration.origin_id, Id128::Random());
  return result;
}

}  // namespace stasis::repository
