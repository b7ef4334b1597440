#include "base/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"

namespace stasis {
namespace {

constexpr char kRemoveHint[] =
    "remove it: the next dump creates a new one, and a restore of an older image then needs "
    "--trust-image";

Result<std::optional<BlockSecret>> ReadSecret(const std::string& path) {
  auto fd = Open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd && fd.error().code == Code::kNotFound) return std::nullopt;
  if (!fd) return Fail(std::move(fd).error());
  struct stat st;
  if (::fstat(fd->get(), &st) != 0) return FailErrno(errno, "stat " + path);
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid()) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} is not a regular file of user {}", path, ::geteuid()), kRemoveHint);
  }
  if ((st.st_mode & 077) != 0) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("{} is accessible to other users (mode {:04o}), who could use it to forge "
                    "your images",
                    path, st.st_mode & 07777),
        fmt::format("if no other user has read it, run `chmod 600 {}`; otherwise {}", path,
                    kRemoveHint));
  }
  BlockSecret secret;
  if (static_cast<uint64_t>(st.st_size) != secret.size()) {
    return Fail(Code::kDataLoss,
                fmt::format("{} has {} bytes instead of {}", path, st.st_size, secret.size()),
                kRemoveHint);
  }
  STASIS_TRY(Annotate(PreadAll(fd->get(), secret.data(), secret.size(), 0), "read " + path));
  return secret;
}

}  // namespace

std::string SecretPath(const Paths& paths) { return paths.data + "/secret.key"; }

Result<BlockSecret> BlockSecretOf(const Paths& paths) {
  const std::string path = SecretPath(paths);
  STASIS_ASSIGN(auto found, ReadSecret(path));
  if (found) return *found;
  STASIS_ASSIGN(BlockSecret secret, BlockKey::RandomSecret());
  std::string_view bytes(reinterpret_cast<const char*>(secret.data()), secret.size());
  STASIS_TRY(WriteNewFileDurably(path, bytes));
  // Another process may have created the file at the same time. Use the one that was created first.
  STASIS_ASSIGN(found, ReadSecret(path));
  if (found) return *found;
  return Fail(Code::kAborted, path + " was removed immediately after it was created");
}

Result<std::optional<BlockSecret>> FindBlockSecret(const Paths& paths) {
  return ReadSecret(SecretPath(paths));
}

}  // namespace stasis
