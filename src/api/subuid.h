// Finds the owners of subordinate user ids.
#pragma once

#include <sys/types.h>

#include <string>

namespace stasis::api {

// Returns the user to whom /etc/subuid assigns `uid`, or `uid` itself. The daemon's limits apply to
// this owner: with newuidmap a user can run programs under all of the user's subordinate ids, and
// these must share one limit. Ids from other sources (an NSS module) count as separate users. Must
// be called by one thread only.
uid_t OwnerOfSubuid(uid_t uid);

// Like OwnerOfSubuid, with the text of /etc/subuid in `subordinates`. A line is OWNER:FIRST:COUNT;
// OWNER is a name or a number.
uid_t OwnerOfSubuidIn(const std::string& subordinates, uid_t uid);

}  // namespace stasis::api
