// The protocol between HelperClient and the device helper, over a SOCK_SEQPACKET socket. Each
// packet is one message, a fixed little-endian struct. Replies may come in any order.
//
//   request   client -> helper   Request: an operation, a process, its arguments
//   reply     helper -> client   Reply: the request's id and operation, the driver's result, and
//                                the fields of that operation; all other fields are zero
//
// Both sides validate every received message (WhyInvalid below) before using it: the driver shares
// the helper's address space and may have overwritten anything. Change kVersion with every change
// of a struct, so that an old helper is rejected instead of misread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stasis::device::cuda::wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kMagic = 0x48444453;  // "SDDH"
inline constexpr uint32_t kVersion = 3;

inline constexpr uint32_t kMaxGpus = 64;
inline constexpr uint32_t kMaxTimeoutMs = 24u * 3600 * 1000;

enum class Op : uint32_t {
  // Must be the first request. Calls cuInit and returns the driver's properties. A descriptor sent
  // with it is a lock: the helper holds it until this client has disconnected and all of its driver
  // calls have returned.
  kHello = 1,
  kGpus,           // all GPUs; with a pid, also that process's memory on each
  kState,          //
  kRestoreThread,  //
  kLock,           // timeout_ms is the driver's own timeout, 0 for none
  kCheckpoint,     //
  kRestore,        // pairs
  kUnlock,         //
  kEnd,            // a client's last request: releases its lock; a resident helper keeps running
  kLeave,          // the same, and the helper exits
  kLast = kLeave,
};

struct Uuid {
  uint8_t bytes[16];
};
struct UuidPair {
  Uuid old_gpu;
  Uuid new_gpu;
};

struct Request {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t id = 0;  // never 0
  Op op = Op::kHello;
  int32_t pid = 0;
  uint32_t timeout_ms = 0;  // kLock
  uint32_t pair_count = 0;
  UuidPair pairs[kMaxGpus] = {};
};
static_assert(sizeof(Request) == 32 + 32 * kMaxGpus);

enum class Outcome : uint32_t {
  kDone = 0,
  kDriverError,  // cu_result, cu_name and cu_text describe it
  kNoDriver,     // driver.why_not gives the reason
  kBadRequest,   // cu_text gives the reason
  kBusy,         // no thread is available for the request
  kLast = kBusy,
};

struct DriverRecord {
  char kind[16];
  char version[48];
  int32_t api_version;
  uint32_t can_checkpoint;
  char why_not[256];
};

enum class Persistence : uint32_t { kUnknown = 0, kOff, kOn, kLast = kOn };

struct GpuRecord {
  Uuid uuid;
  uint64_t total_bytes;
  uint64_t free_bytes;
  uint64_t process_bytes;    // GPU memory of Request::pid
  uint32_t process_present;  // the driver lists the process as a user of this GPU
  int32_t index;
  char name[96];
  Persistence persistence;
  uint32_t reserved;
};

struct Reply {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t id = 0;
  Op op = Op::kHello;
  Outcome outcome = Outcome::kDone;
  int32_t cu_result = 0;
  int32_t state = 0;  // kState: the driver's number of the state
  int32_t tid = 0;    // kRestoreThread
  uint32_t gpu_count = 0;
  char cu_name[64] = {};
  char cu_text[192] = {};
  DriverRecord driver = {};  // kHello
  GpuRecord gpus[kMaxGpus] = {};
};
static_assert(sizeof(Reply) == 40 + 64 + 192 + 328 + 152 * kMaxGpus);

// Returns the reason why a received packet of `size` bytes is invalid, or null if it is valid.
const char* WhyInvalid(const Request& request, size_t size);
const char* WhyInvalid(const Reply& reply, size_t size);

}  // namespace stasis::device::cuda::wire
