#include "store/codec.h"

#include <fmt/format.h>
#include <lz4.h>
#include <zstd.h>

#include <iterator>
#include <memory>

namespace stasis::store {

namespace {

struct Row {
  const char* name;
  Compression compression;
};
constexpr Row kRows[] = {
    {"none", Compression::kNone},
    {"lz4", Compression::kLz4},
    {"zstd", Compression::kZstd},
    {"auto", Compression::kAuto},
};

// The fastest of zstd's regular levels.
constexpr int kZstdLevel = 1;

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* context) const {
    Free(context);
  }
};
using ZstdWriter = std::unique_ptr<ZSTD_CCtx, Freer<ZSTD_freeCCtx>>;
using ZstdReader = std::unique_ptr<ZSTD_DCtx, Freer<ZSTD_freeDCtx>>;

}  // namespace

const char* CodecName(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return "none";
    case Codec::kLz4:
      return "lz4";
    case Codec::kZstd:
      return "zstd";
  }
  return "unknown";
}

Result<Compression> ParseCompression(const std::string& text) {
  for (const Row& row : kRows) {
    if (text == row.name) return row.compression;
  }
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "\"" + text + "\" is not a compression: use none, lz4, zstd or auto");
}

size_t Compress(Codec codec, std::string_view block, char* out, size_t capacity) {
  if (codec == Codec::kLz4) {
    int size = ::LZ4_compress_default(block.data(), out, static_cast<int>(block.size()),
                                      static_cast<int>(capacity));
    return size > 0 ? static_cast<size_t>(size) : 0;
  }
  thread_local ZstdWriter context(::ZSTD_createCCtx());
  if (!context) return 0;
  size_t size =
      ::ZSTD_compressCCtx(context.get(), out, capacity, block.data(), block.size(), kZstdLevel);
  return ::ZSTD_isError(size) != 0 ? 0 : size;
}

Status Decompress(Codec codec, std::string_view stored, void* out, size_t size) {
  size_t found = 0;
  std::string why;  // empty if `stored` is a valid stream
  if (codec == Codec::kLz4) {
    int result = ::LZ4_decompress_safe(stored.data(), static_cast<char*>(out),
                                       static_cast<int>(stored.size()), static_cast<int>(size));
    if (result < 0) why = "it is not a stream of this codec";
    found = static_cast<size_t>(result);
  } else {
    thread_local ZstdReader context(::ZSTD_createDCtx());
    if (!context) return Fail(Code::kResourceExhausted, "there is not enough memory to decompress");
    // In one pass, zstd allocates no window, whatever size the frame requests.
    found = ::ZSTD_decompressDCtx(context.get(), out, size, stored.data(), stored.size());
    if (::ZSTD_isError(found) != 0) why = ::ZSTD_getErrorName(found);
  }
  if (why.empty() && found == size) return {};
  if (why.empty()) why = "its decompressed length is wrong";
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              fmt::format("{} bytes of {} data do not decompress to {} bytes: {}", stored.size(),
                          CodecName(codec), size, why));
}

}  // namespace stasis::store
