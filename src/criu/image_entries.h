// The common format of CRIU's image files, in little-endian:
//   0  u32  0x54564319   common to all of CRIU's images
//   4  u32  the kind of image
//   8  u32  size, followed by as many bytes of protobuf; repeated to the end of the file
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::criu {

// Calls `change` with the bytes of each entry. `change` may replace them; the file is then
// rewritten durably. Returns kInternal if the format is not that of CRIU 4, or the error of
// `change`.
Status ChangeEntries(const std::string& path, uint32_t kind,
                     const std::function<Status(std::string&)>& change);

// Like ChangeEntries, for the bytes of a file. Returns the new bytes. `what` names the file in
// errors.
Result<std::string> ChangedEntries(const std::string& bytes, uint32_t kind, const std::string& what,
                                   const std::function<Status(std::string&)>& change);

// Returns the bytes of a file with these entries.
std::string MakeEntries(uint32_t kind, const std::vector<std::string>& entries);

inline constexpr uint32_t kFilesImage = 0x56303138;   // kind of files.img
inline constexpr uint32_t kPstreeImage = 0x50273030;  // kind of pstree.img

// Calls `look` with the bytes of each entry of a file of `size_bytes`. Keeps only one entry in host
// memory at a time. Returns kInternal if the format is not that of CRIU 4 or if an entry is larger
// than 64 MiB, or the error of `look`.
Status ReadEntries(int fd, uint64_t size_bytes, uint32_t kind, const std::string& what,
                   const std::function<Status(const std::string&)>& look);

}  // namespace stasis::criu
