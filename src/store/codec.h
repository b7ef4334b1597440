// Compresses and decompresses extents. The units of one extent are compressed together, and each
// extent can be read alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::store {

// The values are part of the format (docs/format/image.md).
enum class Codec : uint32_t { kNone = 0, kLz4 = 1, kZstd = 2 };
inline constexpr uint32_t kLastCodec = static_cast<uint32_t>(Codec::kZstd);

const char* CodecName(Codec codec);

// The compression option of a dump. kAuto compresses only while that is faster than writing the
// data uncompressed.
enum class Compression : uint8_t { kNone, kLz4, kZstd, kAuto };
// Parses "none", "lz4", "zstd" or "auto"; returns kInvalidArgument for anything else.
Result<Compression> ParseCompression(const std::string& text);

// Returns the number of bytes written to `out`, or 0 if the compressed `block` does not fit in
// `capacity` bytes. `codec` must not be kNone.
size_t Compress(Codec codec, std::string_view block, char* out, size_t capacity);

// Writes exactly `size` bytes to `out`, never more. Returns kDataLoss if `stored` decompresses to
// another size.
Status Decompress(Codec codec, std::string_view stored, void* out, size_t size);

}  // namespace stasis::store
