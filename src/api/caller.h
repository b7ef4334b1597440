// The user on whose behalf a call is done.
#pragma once

#include <sys/types.h>

#include <compare>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::api {

struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  uid_t account = 0;  // the user whose limits this call counts against: subuid.h
  // False for a call over TCP, whose folders and settings would mean nothing on this machine.
  bool local = true;
  auto operator<=>(const Caller&) const = default;
};

// The credentials that the peer of a unix socket had when it connected, as the kernel recorded
// them. Must be called by one thread only.
Result<Caller> PeerOf(int socket);
// A user of this machine by name, with the groups of a login. kPermissionDenied if there is none.
Result<Caller> UserNamed(const std::string& name);

// A daemon of root serves everybody; any other daemon serves its own user and root. Fails with
// kPermissionDenied.
Status CheckServed(const Caller& caller);
// True for root and the daemon's own user. Part of each limit is reserved for them.
bool IsPrivileged(const Caller& caller);
// True if `caller` may see and cancel operations of `owner`; with the daemon's own user as `owner`,
// also if it may drain the daemon.
bool MayManage(const Caller& caller, uid_t owner);

}  // namespace stasis::api
