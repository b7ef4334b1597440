#include "store/store_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>

#include "base/file.h"
#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/limits.h"
#include "store/manifest_check.h"

namespace stasis::store {

namespace {

// Checks that a folder has only the parts of an image, so that a mistyped path deletes nothing
// else.
Status CheckDeletable(int folder_fd, const std::string& path) {
  auto no_image = [&](const std::string& why) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("{} is not an image: {}", path, why),
                "Nothing was deleted. Use rm if you want to delete this folder.");
  };
  STASIS_ASSIGN(auto entries, ListFolder(folder_fd));
  bool has_manifest = false;
  for (const Entry& entry : entries) {
    bool is_manifest = entry.name == kManifestName && entry.is_regular;
    bool is_part = entry.is_folder && std::find(std::begin(kFolders), std::end(kFolders),
                                                entry.name) != std::end(kFolders);
    has_manifest |= is_manifest;
    if (!is_manifest && !is_part) return no_image("it contains " + Printable(entry.name));
  }
  if (!has_manifest) return no_image(std::string("it has no ") + kManifestName);
  return {};
}

// Returns the image's name, which is a part of a hidden name for `purpose`.
std::string NameIn(const std::string& hidden, std::string_view purpose) {
  return hidden.substr(1, hidden.rfind(fmt::format(".{}-", purpose)) - 1);
}

// Returns the number of the round in the name of a migration's image, or 0 if the name has none.
unsigned long RoundIn(const std::string& prefix, const std::string& image) {
  if (!image.starts_with(prefix + "-")) return 0;
  const std::string number = image.substr(prefix.size() + 1);
  const bool is_number = number.find_first_not_of("0123456789") == number.npos;
  return is_number ? std::strtoul(number.c_str(), nullptr, 10) : 0;
}

// Deletes the images of a killed migration, except the newest, which may be the only copy of the
// program. Fails if one cannot be deleted, for example because it is being read.
Status DeleteRounds(const std::string& store, const std::string& prefix,
                    const std::function<void()>& removed) {
  STASIS_ASSIGN(const auto images, ListImages(store));
  std::map<unsigned long, std::string> rounds;
  for (const std::string& image : images) {
    if (const unsigned long round = RoundIn(prefix, image)) rounds[round] = image;
  }
  const bool has_last = std::find(images.begin(), images.end(), prefix + "-last") != images.end();
  if (!has_last && !rounds.empty()) rounds.erase(std::prev(rounds.end()));
  for (const auto& [round, image] : rounds) {
    Status gone = DeleteImage(store + "/" + image, nullptr, removed);
    if (!gone && gone.error().code != Code::kNotFound) return gone;
  }
  return {};
}

}  // namespace

Result<std::string> ResolveImage(const std::vector<std::string>& stores,
                                 const std::string& name_or_path) {
  std::error_code ignored;
  if (name_or_path.find('/') != std::string::npos) {
    if (std::filesystem::is_directory(name_or_path, ignored)) return AbsolutePath(name_or_path);
    return Fail(Code::kNotFound, Domain::kImage, 0,
                "there is no folder " + Printable(name_or_path, kMaxPathBytes));
  }
  STASIS_TRY(CheckImageName(name_or_path));
  for (const std::string& store : stores) {
    std::string path = store + "/" + name_or_path;
    if (std::filesystem::is_directory(path, ignored)) return AbsolutePath(path);
  }
  return Fail(Code::kNotFound, Domain::kImage, 0,
              fmt::format("there is no image {} in {}", name_or_path, fmt::join(stores, ", ")),
              "`stasis image ls` lists the images; name an image elsewhere by its path.");
}

Result<std::vector<std::string>> ListImages(const std::string& store) {
  if (!PathExists(store)) return std::vector<std::string>{};
  STASIS_ASSIGN(auto names, ListDir(store));
  std::erase_if(names, [&](const std::string& name) {
    return name.front() == '.' || !HasManifest(store + "/" + name);
  });
  return names;
}

Result<std::vector<std::string>> SweepPartials(
    const std::string& store, std::string_view purpose,
    const std::function<void(const std::string& folder)>& at_work) {
  std::vector<std::string> removed;
  Status first_failure;
  if (!PathExists(store)) return removed;
  STASIS_ASSIGN(UniqueFd store_fd, OpenFolder(store));
  STASIS_ASSIGN(auto names, ListDir(store));
  for (const std::string& name : names) {
    if (!IsHiddenName(name, purpose)) continue;
    auto folder = OpenBeneath(store_fd.get(), name, O_RDONLY | O_DIRECTORY);
    if (!folder) continue;  // removed meanwhile, or not a folder
    if (!LockFolder(folder->get(), LockKind::kExclusive, name)) continue;
    // Between the open and the lock, the process that writes the image may have renamed the folder
    // to publish it.
    if (!IsSameFolder(store_fd.get(), name, folder->get())) continue;
    auto note = [&] {
      if (at_work) at_work(store + "/" + name);
    };
    note();
    // If an image of the migration stays, its folder stays too, for the next sweep.
    if (IsHiddenName(name, kMoving) && !DeleteRounds(store, NameIn(name, kMoving), note)) continue;
    auto gone = RemoveHidden(store_fd.get(), store, name, note);
    if (gone) {
      removed.push_back(name);
    } else if (first_failure) {
      first_failure = std::move(gone);
    }
  }
  if (!first_failure) return Fail(std::move(first_failure.error()));
  return removed;
}

Status AwaitPartialsOf(const std::string& store, const std::string& image_name) {
  if (!PathExists(store)) return {};
  STASIS_ASSIGN(UniqueFd store_fd, OpenFolder(store));
  STASIS_ASSIGN(auto names, ListDir(store));
  for (const std::string& name : names) {
    if (!IsHiddenName(name, kPartial) || !name.starts_with("." + image_name + ".")) continue;
    auto folder = OpenBeneath(store_fd.get(), name, O_RDONLY | O_DIRECTORY);
    if (!folder) continue;  // removed meanwhile, or not a folder
    // If the file system has no locks, the call fails at once, because there is nothing to wait
    // for.
    (void)TEMP_FAILURE_RETRY(::flock(folder->get(), LOCK_EX));
  }
  return {};
}

Status DeleteImage(const std::string& path,
                   const std::function<Status(std::string_view)>& before_step,
                   const std::function<void()>& removed) {
  std::filesystem::path clean = AbsolutePath(path);
  if (!clean.has_filename()) clean = clean.parent_path();  // "IMAGE/"
  std::string store = clean.parent_path().string();
  std::string name = clean.filename().string();

  STASIS_ASSIGN(UniqueFd store_fd, OpenFolder(store));
  auto opened = OpenBeneath(store_fd.get(), name, O_RDONLY | O_DIRECTORY);
  if (!opened) {
    bool is_link = opened.error().raw == ELOOP;
    if (is_link) opened.error().message = path + " is a symbolic link; name the image itself";
    return Fail(std::move(opened.error()));
  }
  UniqueFd folder = std::move(*opened);
  STASIS_TRY(CheckDeletable(folder.get(), path));
  STASIS_TRY(LockFolder(folder.get(), LockKind::kExclusive, path));
  STASIS_ASSIGN(std::string hidden, HiddenName(name.substr(0, kMaxImageNameBytes), kDeleted));
  if (before_step) STASIS_TRY(before_step("hide"));
  STASIS_TRY(RenameNoReplace(store_fd.get(), name, hidden));
  if (before_step) STASIS_TRY(before_step("remove"));
  return RemoveHidden(store_fd.get(), store, hidden, removed);
}

Status CheckSpace(const std::string& path, uint64_t needed_bytes) {
  STASIS_ASSIGN(uint64_t free, FreeBytes(path));
  if (free >= needed_bytes) return {};
  return Fail(Code::kResourceExhausted, Domain::kImage, 0,
              fmt::format("an image of about {} bytes does not fit into the {} free bytes of the "
                          "file system of {}",
                          needed_bytes, free, path),
              "Free some space there, or dump to another file system with -d DIR.");
}

}  // namespace stasis::store
