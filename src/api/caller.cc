#include "api/caller.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "api/subuid.h"

namespace stasis::api {
namespace {

constexpr size_t kMaxGroups = 65536;  // the kernel's limit

}  // namespace

Result<Caller> PeerOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return FailErrno(errno, "read the credentials of the connection");
  }
  Caller caller;
  caller.uid = credentials.uid;
  caller.gid = credentials.gid;
  caller.account = OwnerOfSubuid(caller.uid);
  caller.groups.resize(64);
  for (;;) {
    size = static_cast<socklen_t>(caller.groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, caller.groups.data(), &size) == 0) break;
    if (errno != ERANGE || size / sizeof(gid_t) > kMaxGroups) {
      return FailErrno(errno, "read the groups of the connection");
    }
    caller.groups.resize(size / sizeof(gid_t));
  }
  caller.groups.resize(size / sizeof(gid_t));
  return caller;
}

Result<Caller> UserNamed(const std::string& name) {
  // A certificate's name may contain a zero byte, at which the C library would end it.
  if (name.find('\0') != name.npos) {
    return Fail(Code::kPermissionDenied, "the certificate's common name contains a zero byte");
  }
  std::vector<char> buffer(64 << 10);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return Fail(
        Code::kPermissionDenied,
        "the certificate is for '" + name.substr(0, 64) + "', which is not a user of this machine",
        error == 0 ? "the common name must be a user of this machine" : "");
  }
  Caller caller;
  caller.uid = entry.pw_uid;
  caller.gid = entry.pw_gid;
  caller.account = caller.uid;
  caller.local = false;
  int count = 256;
  caller.groups.resize(static_cast<size_t>(count));
  if (::getgrouplist(name.c_str(), entry.pw_gid, caller.groups.data(), &count) < 0) {
    caller.groups.resize(static_cast<size_t>(count));
    if (::getgrouplist(name.c_str(), entry.pw_gid, caller.groups.data(), &count) < 0) count = 0;
  }
  caller.groups.resize(static_cast<size_t>(count));
  return caller;
}

Status CheckServed(const Caller& caller) {
  if (::geteuid() == 0 || caller.uid == ::geteuid() || caller.uid == 0) return {};
  return Fail(Code::kPermissionDenied,
              fmt::format("this daemon belongs to user {} and accepts no other user", ::geteuid()),
              "a daemon started by root serves all users");
}

bool IsPrivileged(const Caller& caller) { return caller.uid == 0 || caller.uid == ::geteuid(); }

bool MayManage(const Caller& caller, uid_t owner) { return caller.uid == 0 || caller.uid == owner; }

}  // namespace stasis::api
