// Counts the memory that stays with the driver. Such memory makes a suspend slower.
//
// Safe to call from any thread, except MayBeHostMemory and ResetDriverMemory.
#pragma once

#include "agent/cuda/real.h"
#include "agent/futex.h"
#include "agent/room.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

extern Mutex g_driver_memory_mutex;  // exported for forks (control.cc)

enum class DriverKind : uint32_t { kNone, kTiny, kPlain, kPool, kManaged, kHost, kProgramVmm };

struct DriverPiece {
  uint64_t key;  // the address; for kProgramVmm the handle
  uint64_t bytes;
  DriverKind kind;
  CUdevice device;
};

void CountDriverMemory(DriverKind kind, uint64_t key, uint64_t bytes, CUdevice device = -1);
// Removes the entry of `key` and returns it. Returns an entry of kind kNone if there is none.
DriverPiece UncountDriverMemory(uint64_t key);
// Calls `free`, by which the driver frees the memory counted under `key`. The entry is removed
// before that, because another thread may get the same address as soon as the driver has freed it.
// If `free` fails, the entry is added again.
template <class F>
CUresult FreeCounted(uint64_t key, F free, DriverPiece* freed = nullptr) {
  const DriverPiece piece = UncountDriverMemory(key);
  const CUresult r = free();
  if (r != CUDA_SUCCESS && piece.kind != DriverKind::kNone) {
    CountDriverMemory(piece.kind, piece.key, piece.bytes, piece.device);
  }
  if (r == CUDA_SUCCESS) room::NoteFree();
  if (r == CUDA_SUCCESS && freed != nullptr) *freed = piece;
  return r;
}
// Counts a new array.
void CountArray();
agent_protocol::DriverAccount DriverAccountNow();
// Returns true if the range may be host memory that the program accesses directly, or if this is
// unknown. Called in a forked child before the reset.
bool MayBeHostMemory(uint64_t begin, uint64_t end);
void ResetDriverMemory();

}  // namespace stasis::agent
