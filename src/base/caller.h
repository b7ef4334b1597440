// Who runs this program: what a process or a file of his may have.
#pragma once

#include <sys/types.h>

#include <set>

namespace stasis {

struct Caller {
  uid_t uid = 0;
  std::set<gid_t> groups;  // the effective one too

  static Caller Self();
  bool root() const { return uid == 0; }
};

}  // namespace stasis
