// The protocol between client and mover over a SOCK_SEQPACKET socket. Each packet is one message, a
// fixed little-endian struct; one request is in progress at a time. Descriptors travel with the
// packet that uses them, at most kMaxBatch in one packet. During a copy a mover sends replies with
// `progress` set before the final reply.
//
// Both sides validate every received message (WhyInvalid below). The sizes and descriptors of a
// save come from the suspended program and are never trusted. Change kVersion with every change of
// a struct.
//
//   phase     request      descriptors       effect
//   idle      hello        0 or 1: a lock    returns the mover's properties. The mover holds
//                                            the lock until `end`
//   idle      attach       1: the arena      maps its memory; earlier registrations are kept
//   idle      detach                         releases the arena
//   idle      warm                           touches and registers `bytes` of it
//   idle      measure                        best of five copies of `bytes` each way
//   idle      begin-save                     count, total: reserves addresses           -> saving
//   saving    import       n: the handles    their sizes
//   saving    save         0 or 1: a file    device -> arena. With kFlagHashes the file has, range
//                                            by range, the hash of the data at each block's place
//                                            in the arena, zero if unknown. Zero blocks and blocks
//                                            with that hash are not copied; afterwards the file
//                                            has the hashes of all blocks, zero for zero blocks
//   idle      begin-load                     count, total, ballast: checks free memory  -> loading
//   loading   create                         n ranges
//   loading   free-ballast
//   loading   load                           arena -> device: the rest of the first `bytes` of the
//                                            arena, or of all of it if that is 0. With kFlagSkip,
//                                            in the first part, a file with one byte for each
//                                            block: 1 is cleared instead
//   loading   load-parts                     n parts of the arena -> device, or zeros. Returns when
//                                            the parts of all earlier requests have arrived
//   loading   hash         1: a file         waits for all parts; writes the hashes of all blocks
//                                            to the file, range by range, zero for zero blocks
//   loading   export                         n handles from `first`; the reply has them
//   any       prepare-hashes                 the secret: loads kernel and key on the GPU
//   idle      measure-hashing                best of five runs over `bytes` of GPU memory
//   any       release                        releases all GPU memory                    -> idle
//   idle      end                            releases arena, lock and secret; the last request. A
//                                            resident mover keeps its context and registrations
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis::dataplane::wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kMagic = 0x56444d53;  // "SMDV"
inline constexpr uint32_t kVersion = 6;

// The kernel passes at most 253 descriptors in a message.
inline constexpr uint32_t kMaxBatch = 200;
// The reply to load-parts says that fewer batches than this are in flight: the oldest has arrived.
inline constexpr size_t kBatchesInFlight = 3;

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
  kPrepareHashes,
  kMeasureHashing,
  kLoadParts,
  kHash,
  kLast = kHash,
};
const char* OpName(Op op);

inline constexpr uint32_t kFlagChecksum = 1;  // save: compute it; load: verify it first
inline constexpr uint32_t kFlagLeave = 2;     // end: exit even if resident
inline constexpr uint32_t kFlagSkip = 4;      // load: skip some blocks
inline constexpr uint32_t kFlagHashes = 8;    // save: skip zero blocks and unchanged ones

struct WireRange {
  uint64_t size_bytes;
  uint64_t arena_offset;
  union {
    uint64_t stored_bytes;
    uint64_t device_offset;  // load-parts: from the beginning of the first range
  };
};
// load-parts: the arena_offset of a part that is zero.
inline constexpr uint64_t kZeros = ~0ull;

struct Request {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t id = 0;  // never 0
  Op op = Op::kHello;
  uint32_t flags = 0;
  uint64_t bytes = 0;          // attach: capacity; warm, measure*, begin-*: total; load: end offset
  uint64_t ballast_bytes = 0;  // begin-load
  // begin-*: the number of all ranges. import, create, export, load-parts: the number in this
  // packet.
  uint32_t count = 0;
  uint32_t first = 0;                // import, create, export: index of the first one
  uint8_t checksum[16] = {};         // load
  uint8_t secret[32] = {};           // prepare-hashes
  WireRange ranges[kMaxBatch] = {};  // import, create, load-parts
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
  uint32_t progress = 0;  // more replies follow; only `bytes` is valid
  // The error; code 0 for none.
  uint32_t code = 0;
  uint32_t domain = 0;
  int64_t raw = 0;
  char message[320] = {};
  char hint[192] = {};
  uint32_t fatal = 0;  // the mover exits after this reply because the driver is no longer reliable
  uint32_t count = 0;  // export: number of descriptors in this packet
  // hello: GPU memory of the context, free and total memory of the GPU. begin-load: needed and free
  // bytes. save, load: bytes copied, bytes skipped or cleared, bytes touched and registered first.
  // measure: bytes, and bytes per second to the arena and to the GPU. measure-hashing: bytes, and
  // bytes per second.
  uint64_t bytes = 0;
  uint64_t second = 0;
  uint64_t third = 0;
  // save, load: time of the copy alone; prepare-hashes: time to load the kernel; hash: GPU time.
  uint64_t elapsed_ns = 0;
  // save: bytes in zero blocks, time from begin-save to the first submitted copy, and GPU time for
  // the hashes.
  uint64_t zero_bytes = 0;
  uint64_t until_first_ns = 0;
  uint64_t hashing_ns = 0;
  // save, load, warm, measure: copies go through staging buffers, because the arena could not be
  // registered.
  uint32_t staged = 0;
  uint32_t reserved = 0;
  uint8_t checksum[16] = {};  // save
};
static_assert(sizeof(Reply) == 40 + 512 + 8 + 7 * 8 + 8 + 16);

// Returns the reason why a received packet of `size` bytes with `fds` descriptors is invalid, or
// null if it is valid.
const char* WhyInvalid(const Request& request, size_t size, size_t fds);
const char* WhyInvalid(const Reply& reply, size_t size, size_t fds);

// Store an error in a reply, and read it back. Long texts are truncated.
void Put(Reply& reply, const Error& error);
Status ErrorOf(const Reply& reply);

}  // namespace stasis::dataplane::wire
