#include "common/mapped.h"

#include <stdint.h>
#include <unistd.h>

#include "common/pair.h"

namespace workloads {
namespace {

constexpr size_t kGranularity = 2u << 20;  // on all GPUs so far

}  // namespace

void Mapped::Map(CUmemGenericAllocationHandle handle, size_t bytes, int device) {
  handle_ = handle;
  bytes_ = bytes;
  CU(cuMemAddressReserve(&address_, bytes_, 0, 0, 0));
  CU(cuMemMap(address_, bytes_, 0, handle_, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU(cuMemSetAccess(address_, bytes_, &access, 1));
}

void Mapped::Unmap() {
  CU(cuMemUnmap(address_, bytes_));
  CU(cuMemAddressFree(address_, bytes_));
}

Mapped Make(const std::vector<uint32_t>& words, int device, int socket) {
  const size_t wanted = words.size() * sizeof(uint32_t);
  const size_t bytes = (wanted + kGranularity - 1) / kGranularity * kGranularity;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  CU(cuMemCreate(&handle, bytes, &properties, 0));
  Mapped made;
  made.Map(handle, bytes, device);
  CU(cuMemcpyHtoD(made.address(), words.data(), wanted));
  CU(cuStreamSynchronize(nullptr));
  int fd = -1;
  CU(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  WriteAll(socket, &bytes, sizeof bytes);
  SendDescriptor(socket, fd);
  close(fd);
  return made;
}

void File::Receive(int socket) {
  if (!ReadAll(socket, &bytes, sizeof bytes)) Fail("the other process did not start");
  fd = ReceiveDescriptor(socket);
}

Mapped File::Import(int device) const {
  CUmemGenericAllocationHandle handle = 0;
  CU(cuMemImportFromShareableHandle(&handle, ForImport(fd),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  Mapped mapped;
  mapped.Map(handle, bytes, device);
  return mapped;
}

Mapped Import(int device, int socket) {
  File file;
  file.Receive(socket);
  const Mapped mapped = file.Import(device);
  close(file.fd);
  return mapped;
}

}  // namespace workloads
