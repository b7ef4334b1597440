// The build id of an ELF file. It identifies one build of a program or library independent of its
// path; CRIU compares it at a restore.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis {

// Returns the build id in lower-case hex. Returns an empty string if the file is not a 64-bit
// little-endian ELF file, has no build id, or is damaged. Fails only if the file cannot be opened.
// Reads at most a few kilobytes, whatever the headers claim.
Result<std::string> ReadBuildId(const std::string& path);

}  // namespace stasis
