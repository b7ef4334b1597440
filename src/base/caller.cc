#include "base/caller.h"

#include <unistd.h>

#include <vector>

namespace stasis {

Caller Caller::Self() {
  Caller caller{::geteuid(), {::getegid()}};
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> groups(count > 0 ? static_cast<size_t>(count) : 0);
  const int got = ::getgroups(count, groups.data());
  if (got > 0) caller.groups.insert(groups.begin(), groups.begin() + got);
  return caller;
}

}  // namespace stasis
