#include "coordinator/image_trust.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <set>

#include "criu/credentials.h"

namespace stasis::coordinator {
namespace {

tl::unexpected<Error> Distrusted(const std::string& what, const std::string& hint) {
  return Fail(Code::kPermissionDenied, what, hint);
}

Status CheckOwner(int folder_fd, const std::string& name, const std::string& shown,
                  const Caller& caller) {
  struct stat st;
  // A link or anything else in the place of a file is found when the image is verified.
  if (::fstatat(folder_fd, name.c_str(), &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0) return {};
  if (st.st_uid != 0 && st.st_uid != caller.uid) {
    return Distrusted(
        fmt::format("the image is another user's: {} belongs to user {}", shown, st.st_uid),
        "it may hold anything. Restore it as that user, or, when you would run any program of his, "
        "with --trust-image");
  }
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) == 0 || S_ISLNK(st.st_mode)) return {};
  return Distrusted(fmt::format("{} can be written by others than its owner (mode {:04o})", shown,
                                st.st_mode & 07777),
                    fmt::format("`chmod -R go-w {}` takes that from them; --trust-image restores "
                                "it as it is",
                                shown));
}

Error ForRoot(uid_t uid) {
  Error error{Code::kPermissionDenied};
  error.message = fmt::format(
      "the image holds a program of user {}, and CRIU would open the files that it names with "
      "root's rights, whatever that user has put in their place",
      uid);
  error.hint =
      "let that user restore it (docs/security.md says how, also as root in his name), or, when "
      "nobody can have touched those files, restore it with --trust-image";
  return error;
}

}  // namespace

Status CheckImageTrust(const image::ImageReader& image, const Caller& caller, bool trusted) {
  const uid_t uid = image.manifest().job.uid;
  if (!caller.root() && uid != caller.uid) {
    return Distrusted(
        fmt::format("the image holds a program of user {}, you are user {}", uid, caller.uid),
        "restore it as that user or as root");
  }
  if (trusted) return {};
  STASIS_TRY(CheckOwner(image.dir_fd(), "", image.path(), caller));
  std::set<std::string> folders;
  for (const auto& file : image.manifest().files) {
    const size_t slash = file.path.rfind('/');
    if (slash != std::string::npos) folders.insert(file.path.substr(0, slash));
    STASIS_TRY(CheckOwner(image.dir_fd(), file.path, image.path() + "/" + file.path, caller));
  }
  for (const std::string& folder : folders) {
    STASIS_TRY(CheckOwner(image.dir_fd(), folder, image.path() + "/" + folder, caller));
  }
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

}  // namespace stasis::coordinator
