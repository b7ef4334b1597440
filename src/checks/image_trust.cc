#include "checks/image_trust.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <set>

#include "base/secret.h"
#include "criu/credentials.h"
#include "repository/pulled_origin.h"
#include "store/image_report.h"
#include "store/manifest_check.h"
#include "store/origin.h"

namespace stasis::checks {
namespace {

tl::unexpected<Error> Distrusted(const std::string& what, const std::string& hint) {
  return Fail(Code::kPermissionDenied, what, hint);
}

Status CheckOwner(int folder_fd, const std::string& name, const std::string& shown,
                  const Caller& caller) {
  struct stat st;
  // A missing file is ignored here, because the verification of the image reports it.
  if (::fstatat(folder_fd, name.c_str(), &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0) return {};
  if (st.st_uid != 0 && st.st_uid != caller.uid) {
    return Distrusted(
        fmt::format("the image belongs to another user: {} belongs to user {}", shown, st.st_uid),
        "an image may contain any program. Restore it as that user or, if you trust that user's "
        "programs, with --trust-image");
  }
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) == 0 || S_ISLNK(st.st_mode)) return {};
  return Distrusted(
      fmt::format("{} can be written by users other than its owner (mode {:04o})", shown,
                  st.st_mode & 07777),
      fmt::format("remove that permission with `chmod -R go-w {}`, or restore the image as it is "
                  "with --trust-image",
                  shown));
}

// Describes the origin that the manifest claims. A forged manifest can claim any origin.
std::string ClaimedOrigin(const store::Manifest& manifest) {
  return fmt::format("its manifest claims that it was written on {} at {}",
                     store::Printable(manifest.host.name), store::Utc(manifest.created_unix_ns));
}

// Returns the error for an image of a repository whose images are not trusted. `what` names the
// image and the repository.
tl::unexpected<Error> FromUntrusted(const std::string& what, const store::Manifest& manifest,
                                    const std::string& change, const Caller& caller) {
  return Distrusted(
      fmt::format("{}, whose images are not trusted; {}", what, ClaimedOrigin(manifest)),
      fmt::format("an image may contain any program, which a restore runs as user {}. If you "
                  "trust all who can write to that repository, {} with --trust; for this image "
                  "alone, restore it with --trust-image (docs/repositories.md)",
                  caller.uid, change));
}

// Returns the advice for a repository that was added without trust: to add it again.
std::string AddAgain(const std::string& repository) {
  return fmt::format("remove it with `stasis repo remove {}` and add it again", repository);
}

Status CheckOrigin(const store::ImageReader& image, const Caller& caller, const Paths& paths) {
  STASIS_ASSIGN(auto key, store::FindOriginKey(paths));
  const store::Origin origin = image.OriginBy(key ? &*key : nullptr);
  if (origin == store::Origin::kOwn) return {};
  struct stat st;
  if (::fstat(image.dir_fd(), &st) != 0) return FailErrno(errno, "stat " + image.path());
  std::string why;
  STASIS_ASSIGN(const auto known, repository::PulledOrigins(paths));
  for (const auto& pulled : known) {
    if (image.OriginBy(&pulled.key) != store::Origin::kOwn) continue;
    if (pulled.trusted) return {};
    return FromUntrusted(
        fmt::format("image {} was pulled from repository {}", image.path(), pulled.repository),
        image.manifest(), AddAgain(pulled.repository), caller);
  }
  if (origin == store::Origin::kChanged) {
    why = "its manifest was changed after it was written here (its origin MAC is wrong)";
  } else if (origin == store::Origin::kUnknown) {
    why = "it has no origin MAC, so its writer is unknown";
  } else if (!key) {
    why = fmt::format(
        "its origin MAC cannot be checked without the key file {}, which does not exist: the image "
        "comes from elsewhere, or the file was deleted",
        SecretPath(paths));
  } else {
    why =
        "its origin MAC was made with another key: the image comes from another machine, user "
        "or state folder, or the key here was replaced later";
  }
  return Distrusted(
      fmt::format("image {} was not written by this installation: {}; {}, and its files belong to "
                  "user {}",
                  image.path(), why, ClaimedOrigin(image.manifest()), st.st_uid),
      fmt::format("an image may contain any program, which a restore runs as user {}. If you know "
                  "and trust its origin, restore it with --trust-image (docs/security.md)",
                  caller.uid));
}

Error ForRoot(uid_t uid) {
  Error error{Code::kPermissionDenied};
  error.message = fmt::format(
      "the image contains a program of user {}, and CRIU would open the files that it names with "
      "root's privileges, even if that user has replaced them",
      uid);
  error.hint =
      "restore it as that user (docs/security.md shows how root does this), or add --trust-image "
      "if the user cannot have replaced those files";
  return error;
}

Status CheckUser(uid_t uid, const Caller& caller) {
  if (caller.root() || uid == caller.uid) return {};
  return Distrusted(
      fmt::format("the image contains a program of user {}, and you are user {}", uid, caller.uid),
      "restore it as that user or as root");
}

}  // namespace

Status CheckRemoteTrust(const store::Manifest& manifest, const std::string& name,
                        const repository::Registration& registration, const Caller& caller,
                        bool trusted) {
  const uid_t uid = manifest.job.uid;
  STASIS_TRY(CheckUser(uid, caller));
  if (trusted) return {};
  if (!registration.trusted) {
    // A repository that was not added is named by its location.
    const bool is_added = registration.name != registration.location;
    return FromUntrusted(
        fmt::format("image {} is in repository {}", name, registration.name), manifest,
        is_added ? AddAgain(registration.name) : "add it with `stasis repo add`", caller);
  }
  if (caller.root() && uid != 0) return Fail(ForRoot(uid));
  return {};
}

Status CheckImageTrust(const store::ImageReader& image, const Caller& caller, const Paths& paths,
                       bool trusted) {
  const uid_t uid = image.manifest().job.uid;
  STASIS_TRY(CheckUser(uid, caller));
  if (trusted) return {};
  STASIS_TRY(CheckOwner(image.dir_fd(), "", image.path(), caller));
  // Check the manifest, all files, and their folders.
  std::set<std::string> paths_inside = {store::kManifestName};
  auto add = [&](const std::string& path) {
    paths_inside.insert(path);
    paths_inside.insert(path.substr(0, path.rfind('/')));
  };
  for (const auto& file : image.manifest().files) add(file.path);
  for (const auto& pack : image.manifest().packs) add(pack.path());
  for (const std::string& path : paths_inside) {
    STASIS_TRY(CheckOwner(image.dir_fd(), path, image.path() + "/" + path, caller));
  }
  // The manifest may be forged. Nothing else may rely on it before this check.
  STASIS_TRY(CheckOrigin(image, caller, paths));
  if (caller.root() && uid != 0) return Fail(ForRoot(uid));
  return {};
}

Status CheckCpuFiles(const std::string& images_dir, const Caller& caller, bool trusted) {
  if (!caller.root()) return criu::FitToCaller(images_dir, caller);
  if (trusted) return {};
  STASIS_ASSIGN(uid_t uid, criu::FindForeignUser(images_dir));
  if (uid != 0) return Fail(ForRoot(uid));
  return {};
}

}  // namespace stasis::checks
