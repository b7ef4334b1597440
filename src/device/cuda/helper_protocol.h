// What is said between us and the device helper, over a SOCK_SEQPACKET socket: one packet a
// message, one fixed little-endian struct a packet, requests answered in any order.
//
//   request   we -> helper   Request: an operation, a process, its arguments
//   reply     helper -> we   Reply: the request's id and operation, what the driver said, and the
//                            fields of that operation; the others are zero
//
// Both sides check every field of what they receive (WhyInvalid below) before they use any, for a
// helper has a whole driver in its address space that may have written anywhere.
// Change kVersion with any change of a struct: an old helper must be refused, not misread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stasis::device::cuda::wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kMagic = 0x48444453;  // "SDDH"
inline constexpr uint32_t kVersion = 2;

// The helper's descriptors.
inline constexpr int kSocketFd = 3;
inline constexpr int kInheritedFd = 4;  // held, never used: ControlOptions::inherit_fd

inline constexpr uint32_t kMaxGpus = 64;
inline constexpr uint32_t kMaxTimeoutMs = 24u * 3600 * 1000;

enum class Op : uint32_t {
  kHello = 1,      // what the driver is; the first request, which calls cuInit
  kGpus,           // all GPUs; with a pid also what that process holds on each
  kState,          //
  kRestoreThread,  //
  kLock,           // timeout_ms: the driver's own, 0 for none
  kCheckpoint,     //
  kRestore,        // pairs
  kUnlock,         //
  kLast = kUnlock,
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
  kDriverError,  // cu_result, cu_name and cu_text say which
  kNoDriver,     // driver.why_not says why
  kBadRequest,   // cu_text says why
  kBusy,         // no thread left to serve it
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
  uint64_t process_bytes;    // of Request::pid
  uint32_t process_present;  // the driver's list of this GPU's users has it
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
  int32_t state = 0;  // kState: the driver's number
  int32_t tid = 0;    // kRestoreThread
  uint32_t gpu_count = 0;
  char cu_name[64] = {};
  char cu_text[192] = {};
  DriverRecord driver = {};  // kHello
  GpuRecord gpus[kMaxGpus] = {};
};
static_assert(sizeof(Reply) == 40 + 64 + 192 + 328 + 152 * kMaxGpus);

// Why a received packet of `size` bytes is not a valid message; null when it is one.
const char* WhyInvalid(const Request& request, size_t size);
const char* WhyInvalid(const Reply& reply, size_t size);

// Copies as much of `text` as fits and ends it.
template <size_t n>
void Put(char (&out)[n], const char* text) {
  std::strncpy(out, text == nullptr ? "" : text, n - 1);
  out[n - 1] = '\0';
}

}  // namespace stasis::device::cuda::wire
