// The control floor: half of what the driver carries of an idle context is the memory behind its
// stack limit. So the limits are lowered before the driver's checkpoint and set back before the
// program runs on. The program sees its own values all the time.
//
// Only the control thread, while the gate is closed and everything is drained. Heap and print
// buffer are left alone: they have contents, and the driver refuses to change them once used.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

// A context that keeps its limit is no error: its checkpoint is only slower.
void LowerFloor();
// Sets back what was lowered, all of it or as much as can be; the first error. A program must not
// run on with less than it had: recursion would overflow a stack that it had made large enough.
CUresult RaiseFloor();
// How much device memory lowering gave back. The driver takes it again with the program's next
// kernels, so a resume needs that much more than the driver's restore.
uint64_t FloorBytes(CUdevice device);

void ResetFloor();

}  // namespace stasis::agent
