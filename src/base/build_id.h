// The build id of an ELF file: what names one build of a program or library, wherever it lies. CRIU
// insists on it at a restore.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis {

// Lower-case hex; empty when the file is no 64-bit little-endian ELF file, has none, or is damaged.
// Fails only when the file cannot be opened. Reads a few kilobytes whatever the file says.
Result<std::string> ReadBuildId(const std::string& path);

// Hex to the bytes that it stands for, and back; what is no hex becomes empty.
std::string BytesOfHex(std::string_view hex);
std::string HexOfBytes(std::string_view bytes);

}  // namespace stasis
