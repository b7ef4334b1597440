// The interface through which one process finds the driver of another: a page at a fixed address
// (kHeaderAddress), created by cuInit and read with process_vm_readv. It is empty in a child after
// fork. CRIU saves it and everything it refers to: anonymous memory, two pipes and a thread.
//
// Raise kHeaderVersion when a layout here changes.
#pragma once

#include <limits.h>

#include <atomic>
#include <cstdint>

#include "address_space.h"
#include "base.h"
#include "broker_protocol.h"

namespace softgpu {

inline constexpr uint64_t kHeaderMagic = 0x55504754464F53;  // "SOFTGPU"
inline constexpr uint32_t kHeaderVersion = 1;

struct ProcessHeader {
  std::atomic<uint64_t> magic;
  uint32_t version;
  std::atomic<int32_t> state;  // CUprocessState
  int32_t pid;                 // in the process's own pid namespace, like restore_thread
  int32_t restore_thread;
  // Both ends of both pipes are open in the process; a client opens them through /proc/PID/fd. Only
  // the process that holds the flock on the request pipe may send requests.
  int32_t request_read, request_write;
  int32_t reply_read, reply_write;
};
static_assert(sizeof(ProcessHeader) <= kPage);

enum class CheckpointOp : uint32_t { kLock = 1, kCheckpoint, kRestore, kUnlock };

struct CheckpointRequest {
  uint64_t nonce;
  CheckpointOp op;
  uint32_t timeout_ms;
  uint32_t pair_count;
  uint32_t reserved;
  CUcheckpointGpuPair pairs[kMaxDevices];
};
static_assert(sizeof(CheckpointRequest) <= PIPE_BUF, "writes to a pipe are atomic up to PIPE_BUF");

struct CheckpointReply {
  uint64_t nonce;
  int32_t result;  // CUresult
  int32_t reserved;
};

}  // namespace softgpu
