// Queries of the kernel's sock_diag interface, over netlink. Internal to this folder.
#pragma once

#include <linux/netlink.h>

#include <cstddef>
#include <functional>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::criu {

// Opens a socket for queries in the network namespace of this thread.
Result<UniqueFd> OpenSockDiag();

// Sends a request, whose `size` bytes begin with an nlmsghdr, and calls `take` for each message of
// the answer. Returns the kernel's errno, or 0.
Result<int> AskSockDiag(int fd, const void* request, size_t size,
                        const std::function<void(const nlmsghdr*)>& take);

}  // namespace stasis::criu
