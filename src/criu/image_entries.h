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

inline constexpr uint32_t kFilesImage = 0x56303138;  // the kind of files.img

// Calls `look` with the bytes of each entry of a file of `size_bytes`, of which it holds no more
// than one entry and a little at a time. kInternal: it is not as CRIU 4 writes it, or has an entry
// beyond 64 MiB. Also what `look` fails with.
Status ReadEntries(int fd, uint64_t size_bytes, uint32_t kind, const std::string& what,
                   const std::function<Status(const std::string&)>& look);

}  // namespace stasis::criu
