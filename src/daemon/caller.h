// Who calls.
#pragma once

#include <sys/types.h>

#include <compare>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::daemon {

struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  uid_t account = 0;  // whose share of the daemon he takes: account.h
  // On this machine, so that folders and settings of its own mean something here.
  bool local = true;
  auto operator<=>(const Caller&) const = default;
};

// Of a connected unix socket: the rights that the process had when it connected, by the kernel's
// word. Called by one thread.
Result<Caller> PeerOf(int socket);
// A user of this machine by name, with the groups of a login. kPermissionDenied: there is none.
Result<Caller> UserNamed(const std::string& name);

// Who does our work: root for everybody, anybody else for itself. kPermissionDenied.
Status CheckServed(const Caller& caller);
// Root and the daemon's own user: there is room for them when others have taken all that they may.
bool HasRoomKept(const Caller& caller);
// May `caller` see and cancel what `owner` has begun, and drain the daemon (`owner` then is us)?
bool MayManage(const Caller& caller, uid_t owner);

}  // namespace stasis::daemon
