#include "agent/cuda/devices.h"

#include <string.h>
#include <unistd.h>

#include "agent/cuda/visible.h"
#include "agent/futex.h"

namespace stasis::agent {
namespace {

Device g_devices[agent_protocol::kMaxDevices];
std::atomic<int> g_count{0};
Mutex g_probe_mutex;  // held over driver calls; taken before g_memory_mutex

bool Has(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return real::cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

// Tests whether memory of the device can be exported: creates, exports and releases one handle,
// because some virtual GPUs report support that they do not have. Sets *sure to false if the GPU is
// full, because the result may then be wrong.
bool CanExport(CUdevice device, bool* sure) {
  CUmemAllocationProp properties = ShareableProperties(device);
  size_t granularity = 0;
  if (real::cuMemGetAllocationGranularity(&granularity, &properties,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
      granularity == 0 || (2u << 20) % granularity != 0) {
    return false;
  }
  CUmemGenericAllocationHandle handle = 0;
  CUresult made = real::cuMemCreate(&handle, 2u << 20, &properties, 0);
  *sure = made != CUDA_ERROR_OUT_OF_MEMORY;
  if (made != CUDA_SUCCESS) return false;
  int fd = -1;
  CUresult exported =
      real::cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (exported == CUDA_SUCCESS && fd >= 0) close(fd);
  real::cuMemRelease(handle);
  return exported == CUDA_SUCCESS;
}

}  // namespace

Device* DeviceAt(CUdevice device) {
  if (device < 0 || device >= int(agent_protocol::kMaxDevices)) return nullptr;
  if (Device* known = KnownDevice(device)) return known;
  Lock lock(g_probe_mutex);
  if (Device* known = KnownDevice(device)) return known;
  CUuuid uuid{};
  if (real::cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS &&
      real::cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS) {
    return nullptr;
  }
  Device& d = g_devices[device];
  memcpy(d.uuid.bytes, uuid.bytes, sizeof(d.uuid.bytes));
  d.rdma = Has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  bool sure = true;
  d.fast = Has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
           Has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) &&
           CanExport(device, &sure);
  if (device >= g_count.load()) g_count.store(device + 1);
  __atomic_store_n(&d.probed, sure, __ATOMIC_RELEASE);
  return &d;
}

Device* KnownDevice(CUdevice device) {
  if (device < 0 || device >= int(agent_protocol::kMaxDevices)) return nullptr;
  Device& d = g_devices[device];
  return __atomic_load_n(&d.probed, __ATOMIC_ACQUIRE) ? &d : nullptr;
}

int DeviceCount() { return g_count.load(); }

void ResetDevices() {
  ResetVisible();
  g_probe_mutex.ResetAfterFork();
  for (Device& d : g_devices) d = Device{};
  g_count.store(0);
}

CUmemAllocationProp ShareableProperties(CUdevice device) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof(properties));
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  // The driver sets this flag too for memory that it allocates itself.
  properties.allocFlags.gpuDirectRDMACapable = g_devices[device].rdma ? 1 : 0;
  return properties;
}

CUresult SetAccess(CUdeviceptr address, size_t bytes, const AccessFlags& flags) {
  CUmemAccessDesc access[agent_protocol::kMaxDevices];
  size_t count = 0;
  for (int device = 0; device < int(agent_protocol::kMaxDevices); ++device) {
    if (flags[device] == 0) continue;
    access[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CUmemAccess_flags(flags[device])};
  }
  return count == 0 ? CUDA_SUCCESS : real::cuMemSetAccess(address, bytes, access, count);
}

CUresult GiveAccess(CUdeviceptr address, size_t bytes, CUdevice device) {
  AccessFlags flags = {};
  for (int peer = 0; peer < int(agent_protocol::kMaxDevices); ++peer) {
    if (peer != device && (g_devices[device].peers >> peer & 1) == 0) continue;
    flags[peer] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return SetAccess(address, bytes, flags);
}

}  // namespace stasis::agent
