// Whose share of the daemon a user takes.
#pragma once

#include <sys/types.h>

#include <string>

namespace stasis::daemon {

// The user to whom /etc/subuid gives `uid` as one of his subordinate ids, else `uid` itself: a user
// is as many as he likes there (newuidmap), and shall not have as many times his share. Ids that
// another source gives (an NSS module) count as users of their own. Called by one thread.
uid_t AccountOf(uid_t uid);

// The same of a file's text: lines of OWNER:FIRST:COUNT, OWNER a name or a number.
uid_t AccountIn(const std::string& subordinates, uid_t uid);

}  // namespace stasis::daemon
