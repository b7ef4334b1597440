// How a block's stored bytes become its own. A block is compressed alone, so that any one of them
// can be read without the others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::store {

// On disk; docs/format/image.md.
enum class Codec : uint32_t { kNone = 0, kLz4 = 1, kZstd = 2 };
inline constexpr uint32_t kLastCodec = static_cast<uint32_t>(Codec::kZstd);

const char* CodecName(Codec codec);

// What a user asks for. kAuto: where the storage is the slower part, and only there.
enum class Compression : uint8_t { kNone, kLz4, kZstd, kAuto };
// "none", "lz4", "zstd", "auto"; else kInvalidArgument.
Result<Compression> ParseCompression(const std::string& text);

// Bytes written to `out`; 0 when `block` does not fit in `capacity` bytes that way. `codec` is one
// that compresses.
size_t Compress(Codec codec, std::string_view block, char* out, size_t capacity);

// Exactly `size` bytes to `out`, or kDataLoss; never more, whatever `stored` claims.
Status Decompress(Codec codec, std::string_view stored, void* out, size_t size);

}  // namespace stasis::store
