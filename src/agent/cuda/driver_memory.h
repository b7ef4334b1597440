// The account of memory that stays with the driver. This memory makes a suspend slower.
//
// Safe to call from any thread, except MayBeHostMemory and ResetDriverMemory.
#pragma once

#include "agent/cuda/real.h"
#include "agent/futex.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

extern Mutex g_driver_memory_mutex;  // for a fork (control.cc)

enum class DriverKind : uint32_t { kNone, kTiny, kPlain, kPool, kManaged, kHost, kProgramVmm };

struct DriverPiece {
  uint64_t key;  // the address; for kProgramVmm the handle
  uint64_t bytes;
  DriverKind kind;
  CUdevice device;
};

void CountDriverMemory(DriverKind kind, uint64_t key, uint64_t bytes, CUdevice device = -1);
// Takes what is counted under the key out of the account; kNone when nothing is.
DriverPiece UncountDriverMemory(uint64_t key);
// Calls `free`, which has the driver free what is counted under the key. It is out of the account
// before, since another thread may be given the same address as soon as the driver has freed it. A
// free that fails brings it back.
template <class F>
CUresult FreeCounted(uint64_t key, F free, DriverPiece* freed = nullptr) {
  const DriverPiece piece = UncountDriverMemory(key);
  const CUresult r = free();
  if (r != CUDA_SUCCESS && piece.kind != DriverKind::kNone) {
    CountDriverMemory(piece.kind, piece.key, piece.bytes, piece.device);
  }
  if (r == CUDA_SUCCESS && freed != nullptr) *freed = piece;
  return r;
}
agent_protocol::DriverAccount DriverAccountNow();
// For a forked child, before the reset: whether the range may be host memory that the program reads
// by itself. Returns true if that is unknown.
bool MayBeHostMemory(uint64_t begin, uint64_t end);
void ResetDriverMemory();

}  // namespace stasis::agent
