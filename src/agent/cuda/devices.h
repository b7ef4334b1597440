// Caches properties of each device that the program sees, by its ordinal in the program.
#pragma once

#include "agent/cuda/real.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

struct Device {
  bool probed = false;  // read and written atomically, after `fast`, `rdma` and `uuid`
  bool fast = false;    // handles can be made, exported and mapped
  bool rdma = false;    // memory can be made reachable for other PCIe devices
  agent_protocol::Uuid uuid{};
  // Guarded by g_memory_mutex. A change of `peers` also requires g_growth_mutex.
  uint64_t peers = 0;  // bit n: the program has let its device n reach this device's memory
  uint64_t region_bytes = 0;
  uint64_t tiny_bytes = 0;
};

// Returns the device; the first use probes it with driver calls, so the caller must not hold
// g_memory_mutex. Returns null if there is no such device or its ordinal is too high.
Device* DeviceAt(CUdevice device);
// Returns the device without a driver call, or null if it has not been probed yet.
Device* KnownDevice(CUdevice device);
int DeviceCount();  // one more than the highest probed ordinal
void ResetDevices();

// Returns the properties of memory that can be exported.
CUmemAllocationProp ShareableProperties(CUdevice device);

using AccessFlags = uint8_t[agent_protocol::kMaxDevices];  // CUmemAccess_flags by device
// Sets the access of all devices whose flags are not 0.
CUresult SetAccess(CUdeviceptr address, size_t bytes, const AccessFlags& flags);
// Lets the device and its peers read and write the memory.
CUresult GiveAccess(CUdeviceptr address, size_t bytes, CUdevice device);

}  // namespace stasis::agent
