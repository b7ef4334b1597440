// The user that runs this program, for checks of access to processes and files.
#pragma once

#include <sys/types.h>

#include <set>

namespace stasis {

struct Caller {
  uid_t uid = 0;
  std::set<gid_t> groups;  // includes the effective group

  // The effective user of this process, with its groups.
  static Caller Self();
  bool root() const { return uid == 0; }
};

}  // namespace stasis
