// What the agent knows of each device that the program sees, by its ordinal there.
#pragma once

#include "agent/cuda/real.h"
#include "wire/protocol.h"

namespace stasis::agent {

struct Device {
  bool probed = false;
  bool fast = false;  // handles can be made, exported and mapped
  bool rdma = false;  // handles may be asked to be reachable for other PCIe devices
  wire::Uuid uuid{};
  uint64_t peers = 0;  // bit n: the program has let its device n reach this one's memory
  uint64_t region_bytes = 0;
  uint64_t tiny_bytes = 0;
};

// Looks at the device on first use. null: there is no such device, or it is beyond our tables. The
// caller holds memory's mutex.
Device* DeviceAt(CUdevice device);
// The same without a driver call: null when it was not looked at yet.
Device* KnownDevice(CUdevice device);
int DeviceCount();  // one more than the highest ordinal that was looked at
void ResetDevices();

// Properties of memory that can be exported, and access to it by the device and its peers.
CUmemAllocationProp ShareableProperties(CUdevice device);
CUresult GiveAccess(CUdeviceptr address, size_t bytes, CUdevice device);

}  // namespace stasis::agent
