// Memory that stays with the driver, counted: it is what makes a suspend slower than it could be,
// and the account says so.
#pragma once

#include "agent/cuda/real.h"
#include "wire/protocol.h"

namespace stasis::agent {

enum class DriverKind : uint32_t { kNone, kTiny, kPlain, kPool, kManaged, kHost, kProgramVmm };

struct DriverPiece {
  uint64_t key;  // its address; of kProgramVmm the handle
  uint64_t bytes;
  DriverKind kind;
  CUdevice device;
};

void CountDriverMemory(DriverKind kind, uint64_t key, uint64_t bytes, CUdevice device = -1);
// What was counted under the key; kNone when nothing was.
DriverPiece UncountDriverMemory(uint64_t key);
wire::DriverAccount DriverAccountNow();
// In a child after fork, before the reset: what lies there may be host memory that the program
// reads by itself. Also where that cannot be told.
bool MayBeHostMemory(uint64_t begin, uint64_t end);
void ResetDriverMemory();

}  // namespace stasis::agent
