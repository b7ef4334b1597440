// The user on whose behalf a call is executed.
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
  uid_t account = 0;  // the user whose limits this call counts against; see subuid.h
  // False for a call over TCP, whose folders and settings would be those of another machine.
  bool local = true;
  auto operator<=>(const Caller&) const = default;
};

// Returns the credentials that the peer of a unix socket had when it connected, as the kernel
// recorded them. Must be called by one thread only.
Result<Caller> PeerOf(int socket);
// Returns the user of this machine with that name, with the groups of a login. Returns
// kPermissionDenied if there is no such user.
Result<Caller> UserNamed(const std::string& name);

// Returns kPermissionDenied if this daemon does not serve the caller. A daemon of root serves all
// users; any other daemon serves its own user and root.
Status CheckServed(const Caller& caller);
// Returns true for root and the daemon's own user. Part of each limit is reserved for these users.
bool IsPrivileged(const Caller& caller);
// Returns true if `caller` may see and cancel operations of `owner`. A caller that may manage the
// operations of the daemon's own user may also drain the daemon.
bool MayManage(const Caller& caller, uid_t owner);

}  // namespace stasis::api
