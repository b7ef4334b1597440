// CRIU's image files are all built alike, numbers little-endian:
//   0  u32  0x54564319   common to all of CRIU's images
//   4  u32  which kind it is
//   8  u32  size, then so many bytes of protobuf; again and again to the end of the file
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace stasis::criu {

// Reads such a file and calls `change` with each entry's bytes, which it may replace. Writes the
// file anew, durably, if one was replaced. kInternal: it is not as CRIU 4 writes it. Also what
// `change` fails with.
Status ChangeEntries(const std::string& path, uint32_t kind,
                     const std::function<Status(std::string&)>& change);

// The same of bytes: what they are after that. `what` names them in the error.
Result<std::string> ChangedEntries(const std::string& bytes, uint32_t kind, const std::string& what,
                                   const std::function<Status(std::string&)>& change);

}  // namespace stasis::criu
