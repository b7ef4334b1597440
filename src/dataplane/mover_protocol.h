// What is said between us and a mover, over a SOCK_SEQPACKET socket: one packet a message, one
// fixed little-endian struct a packet, one request at a time. Descriptors travel with the packet
// that names them, at most kMaxBatch in one. While it copies, a mover sends replies with `progress`
// set before the one that ends the request.
//
// Both sides check every field of what they receive (WhyInvalid below). Sizes and descriptors of a
// save come from the program that is suspended: nothing about them is believed.
// Change kVersion with any change of a struct.
//
//   phase     request      descriptors       then
//   idle      hello        0 or 1: a lock    what it is; the lock is held until the end
//   idle      attach       1: the arena      its memory is mapped; what was registered stays so
//   idle      detach                         lets go of the arena
//   idle      warm                           touches and registers `bytes` of it
//   idle      measure                        best of five copies of `bytes` each way
//   idle      begin-save                     count, total: addresses for all of them   -> saving
//   saving    import       n: the handles    their sizes
//   saving    save         0 or 1: a file    device -> arena. With kFlagNames the file has, for
//                                            each block, range by range, the name of what the arena
//                                            has in its place, zero where that is not known. What
//                                            is zero or has that name is not copied; the file has
//                                            the names of all blocks then, zero for one of zeros
//   idle      begin-load                     count, total, ballast: is there room?     -> loading
//   loading   create                         n ranges
//   loading   free-ballast
//   loading   load                           arena -> device: what was not loaded yet of its first
//                                            `bytes`, or all of it when that is 0. With
//                                            kFlagSkip, for the first part, a file as above: 1 is
//                                            cleared instead
//   loading   export                         n handles from `first`; the reply has them
//   any       prepare-names                  the secret: kernel and key are on the GPU
//   idle      measure-names                  best of five times naming `bytes` of GPU memory
//   any       release                        lets go of all GPU memory                 -> idle
//   idle      end                            lets go of arena, lock and secret; nothing follows. A
//                                            mover that stays keeps its context and what is
//                                            registered
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis::dataplane::wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kMagic = 0x56444d53;  // "SMDV"
inline constexpr uint32_t kVersion = 5;

inline constexpr int kSocketFd = 3;
inline constexpr int kInheritedFd = 4;  // held, never used: as of the device helper
inline constexpr int kListenFd = 5;     // of one that stays: bound, and its own to listen on

// The kernel passes 253 descriptors in a message.
inline constexpr uint32_t kMaxBatch = 200;

enum class Op : uint32_t {
  kHello = 1,
  kAttach,
  kDetach,
  kWarm,
  kMeasure,
  kBeginSave,
  kImport,
  kSave,
  kBeginLoad,
  kCreate,
  kFreeBallast,
  kLoad,
  kExport,
  kRelease,
  kEnd,
  kPrepareNames,
  kMeasureNames,
  kLast = kMeasureNames,
};
const char* OpName(Op op);

inline constexpr uint32_t kFlagChecksum = 1;  // save: compute it; load: compare it first
inline constexpr uint32_t kFlagLeave = 2;     // end: do not stay
inline constexpr uint32_t kFlagSkip = 4;      // load: not all blocks are copied
inline constexpr uint32_t kFlagNames = 8;     // save: only what is not zero and not there already

struct WireRange {
  uint64_t size_bytes;
  uint64_t arena_offset;
  uint64_t stored_bytes;
};

struct Request {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t id = 0;  // never 0
  Op op = Op::kHello;
  uint32_t flags = 0;
  uint64_t bytes = 0;          // attach: capacity; warm, measure*, begin-*: total; load: how far
  uint64_t ballast_bytes = 0;  // begin-load
  uint32_t count = 0;          // begin-*: of all ranges; import, create, export: in this packet
  uint32_t first = 0;          // import, create, export: index of the first
  uint8_t checksum[16] = {};   // load
  uint8_t secret[32] = {};     // prepare-names
  WireRange ranges[kMaxBatch] = {};  // import, create
};
static_assert(sizeof(Request) == 96 + 24 * kMaxBatch);

inline Request Make(Op op) {
  Request request;
  request.op = op;
  return request;
}

struct Reply {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t id = 0;
  Op op = Op::kHello;
  uint32_t progress = 0;  // more replies follow; only `bytes` counts
  // The error, none when code is 0.
  uint32_t code = 0;
  uint32_t domain = 0;
  int64_t raw = 0;
  char message[320] = {};
  char hint[192] = {};
  uint32_t fatal = 0;  // the mover ends after this reply: the driver is not to be trusted any more
  uint32_t count = 0;  // export: descriptors in this packet
  // hello: context's GPU memory, free and total of the GPU. begin-load: needed and free.
  // save, load: bytes copied, bytes left out or cleared, bytes that were touched or registered
  // first. measure: bytes, and bytes a second to the arena and to the GPU. measure-names: bytes,
  // and bytes a second.
  uint64_t bytes = 0;
  uint64_t second = 0;
  uint64_t third = 0;
  // save, load: of the copy alone; prepare-names: to load the kernel.
  uint64_t elapsed_ns = 0;
  // save: bytes in blocks of zeros; time from begin-save until the first copy was on its way; what
  // the GPU needed for the names.
  uint64_t zero_bytes = 0;
  uint64_t until_first_ns = 0;
  uint64_t naming_ns = 0;
  uint32_t staged = 0;  // through buffers, since the arena could not be registered
  uint32_t reserved = 0;
  uint8_t checksum[16] = {};  // save
};
static_assert(sizeof(Reply) == 40 + 512 + 8 + 7 * 8 + 8 + 16);

// Why a received packet of `size` bytes with `fds` descriptors is not a valid message; null when
// it is one.
const char* WhyInvalid(const Request& request, size_t size, size_t fds);
const char* WhyInvalid(const Reply& reply, size_t size, size_t fds);

void Put(Reply& reply, const Error& error);
Status ErrorOf(const Reply& reply);

}  // namespace stasis::dataplane::wire
