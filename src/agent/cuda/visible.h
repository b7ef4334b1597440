// Hides GPUs from the program, but not from the driver: those that CUDA_VISIBLE_DEVICES does not
// name.
#pragma once

#include "agent/cuda/real.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

// The driver cannot move a program to a GPU that CUDA_VISIBLE_DEVICES hid from it. It reads the
// variable in cuInit only. If the user wants it (STASIS_HIDE_GPUS=1), calls the driver's cuInit
// while the variable lists the hidden GPUs too, behind the others, so all GPUs of the program keep
// their ordinals. Then restores the variable.
CUresult InitWithAllGpus(unsigned flags);

// Returns whether the program must not see this device.
bool IsHidden(CUdevice device);

// Sets the reply's fields. Calls the driver if `asks_driver`, otherwise tells what the driver said
// last. For the control thread only.
void DescribeVisible(bool asks_driver, agent_protocol::Visible* reply);

// SAFETY: only in a forked child.
void ResetVisible();

}  // namespace stasis::agent
