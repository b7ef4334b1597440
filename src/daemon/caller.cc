#include "daemon/caller.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "daemon/account.h"

namespace stasis::daemon {
namespace {

constexpr size_t kMaxGroups = 65536;  // the kernel's own

}  // namespace

Result<Caller> PeerOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return FailErrno(errno, "ask who has connected");
  }
  Caller caller;
  caller.uid = credentials.uid;
  caller.gid = credentials.gid;
  caller.account = AccountOf(caller.uid);
  caller.groups.resize(64);
  for (;;) {
    size = static_cast<socklen_t>(caller.groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, caller.groups.data(), &size) == 0) break;
    if (errno != ERANGE || size / sizeof(gid_t) > kMaxGroups) {
      return FailErrno(errno, "ask for the groups of who has connected");
    }
    caller.groups.resize(size / sizeof(gid_t));
  }
  caller.groups.resize(size / sizeof(gid_t));
  return caller;
}

Result<Caller> UserNamed(const std::string& name) {
  std::vector<char> buffer(64 << 10);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return Fail(Code::kPermissionDenied,
                "the certificate is for '" + name.substr(0, 64) + "', who is no user here",
                error == 0 ? "its common name has to be a user of this machine" : "");
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
              fmt::format("this daemon is user {}'s, and works for nobody else", ::geteuid()),
              "one that root runs works for all users");
}

bool HasRoomKept(const Caller& caller) { return caller.uid == 0 || caller.uid == ::geteuid(); }

bool MayManage(const Caller& caller, uid_t owner) { return caller.uid == 0 || caller.uid == owner; }

}  // namespace stasis::daemon
