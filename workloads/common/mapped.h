// Memory that one process allocates and another maps, through handles exported as files
// (cuMemExportToShareableHandle), like NCCL does.
#pragma once

#include <stddef.h>

#include <vector>

#include "common/gpu.h"

namespace workloads {

class Mapped {
 public:
  void Map(CUmemGenericAllocationHandle handle, size_t bytes, int device);
  // The mapping keeps the memory alive.
  void LetGoOfHandle() { CU(cuMemRelease(handle_)); }
  void Unmap();
  CUdeviceptr address() const { return address_; }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
};

// Allocates memory with the content `words` and sends its handle.
Mapped Make(const std::vector<uint32_t>& words, int device, int socket);

// The file of a handle that Make has sent.
struct File {
  int fd = -1;
  size_t bytes = 0;

  void Receive(int socket);
  Mapped Import(int device) const;
};
Mapped Import(int device, int socket);

}  // namespace workloads
