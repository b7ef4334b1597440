// stat(2) that does not block on a file server.
#pragma once

#include <sys/stat.h>

#include <string>

namespace stasis {

// Fills `st` from the kernel's cached attributes, without asking the server of a network or FUSE
// file system. The size and the times may be stale. Returns false with errno on error.
bool StatWithoutSync(const std::string& path, struct stat* st);

}  // namespace stasis
