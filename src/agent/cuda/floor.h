// The control floor: the memory behind a context's stack limit is half of the memory that the
// driver saves for an idle context. So the limits are lowered before the driver's checkpoint and
// restored before the program continues. The program always sees its own values.
//
// Only the control thread calls these functions; LowerFloor and RaiseFloor while the gate is closed
// and sealed.
// The limits of the heap and the print buffer are not lowered: both have contents, and the driver
// refuses to change their limits after the first use.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

// Lowers the limits. It is not an error if a context keeps its limit: its checkpoint is only
// slower.
void LowerFloor();
// Restores as many limits as possible and returns the first error. A program must not continue with
// a smaller limit: recursion would overflow a stack that it had made large enough.
CUresult RaiseFloor();
// Returns how much device memory the lower limits have freed. The driver allocates it again for the
// program's next kernels, so a resume needs that much more memory than the driver's restore.
uint64_t FloorBytes(CUdevice device);

void ResetFloor();

}  // namespace stasis::agent
