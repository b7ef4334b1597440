#include "base/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"

namespace stasis {
namespace {

// The words of a message about an unusable file.
struct Words {
  const char* danger;  // what another user could do with the file
  const char* remedy;
};
constexpr Words kSecretWords = {"forge your images",
                                "remove it: the next dump creates a new one, and a restore of an "
                                "older image then needs --trust-image"};
constexpr Words kJoinedWords = {"make memory for which a dump stores the wrong data",
                                "remove it, and run `stasis key join` again"};

Result<std::optional<BlockSecret>> ReadSecret(const std::string& path, const Words& words) {
  auto fd = Open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd && fd.error().code == Code::kNotFound) return std::nullopt;
  if (!fd) return Fail(std::move(fd).error());
  struct stat st;
  if (::fstat(fd->get(), &st) != 0) return FailErrno(errno, "stat " + path);
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid()) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} is not a regular file of user {}", path, ::geteuid()),
                words.remedy);
  }
  if ((st.st_mode & 077) != 0) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} is accessible to other users (mode {:04o}), who could use it to {}",
                            path, st.st_mode & 07777, words.danger),
                fmt::format("if no other user has read it, run `chmod 600 {}`; otherwise {}", path,
                            words.remedy));
  }
  BlockSecret secret;
  if (static_cast<uint64_t>(st.st_size) != secret.size()) {
    return Fail(Code::kDataLoss,
                fmt::format("{} has {} bytes instead of {}", path, st.st_size, secret.size()),
                words.remedy);
  }
  STASIS_TRY(Annotate(PreadAll(fd->get(), secret.data(), secret.size(), 0), "read " + path));
  return secret;
}

}  // namespace

std::string SecretPath(const Paths& paths) { return paths.data + "/secret.key"; }
std::string NamingSecretPath(const Paths& paths) { return paths.data + "/names.key"; }

Result<BlockSecret> BlockSecretOf(const Paths& paths) {
  const std::string path = SecretPath(paths);
  STASIS_ASSIGN(auto found, ReadSecret(path, kSecretWords));
  if (found) return *found;
  STASIS_ASSIGN(BlockSecret secret, BlockKey::RandomSecret());
  std::string_view bytes(reinterpret_cast<const char*>(secret.data()), secret.size());
  STASIS_TRY(WriteNewFileDurably(path, bytes));
  // Another process may have created the file at the same time. Use the one that was created first.
  STASIS_ASSIGN(found, ReadSecret(path, kSecretWords));
  if (found) return *found;
  return Fail(Code::kAborted, path + " was removed immediately after it was created");
}

Result<std::optional<BlockSecret>> FindBlockSecret(const Paths& paths) {
  return ReadSecret(SecretPath(paths), kSecretWords);
}

Result<BlockSecret> NamingSecretOf(const Paths& paths) {
  STASIS_ASSIGN(const auto joined, FindJoinedSecret(paths));
  if (joined) return *joined;
  return BlockSecretOf(paths);
}

Result<std::optional<BlockSecret>> FindJoinedSecret(const Paths& paths) {
  return ReadSecret(NamingSecretPath(paths), kJoinedWords);
}

Result<bool> JoinNamingSecret(const Paths& paths, const BlockSecret& secret) {
  STASIS_ASSIGN(const auto joined, FindJoinedSecret(paths));
  if (joined == secret) return false;
  const std::string_view bytes(reinterpret_cast<const char*>(secret.data()), secret.size());
  STASIS_TRY(WriteFileDurably(NamingSecretPath(paths), bytes));
  return true;
}

}  // namespace stasis
