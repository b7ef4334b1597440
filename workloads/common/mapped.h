// Memory that one process makes and another maps, by handles that travel as files
// (cuMemExportToShareableHandle), as NCCL shares.
#pragma once

#include <stddef.h>

#include <vector>

#include "common/gpu.h"

namespace workloads {

class Mapped {
 public:
  void Map(CUmemGenericAllocationHandle handle, size_t bytes, int device);
  // The mapping keeps the memory.
  void LetGoOfHandle() { CU(cuMemRelease(handle_)); }
  void Unmap();
  CUdeviceptr address() const { return address_; }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
};

// Makes memory that holds `words` and sends it.
Mapped Make(const std::vector<uint32_t>& words, int device, int socket);

// What Make has sent.
struct File {
  int fd = -1;
  size_t bytes = 0;

  void Receive(int socket);
  Mapped Import(int device) const;
};
Mapped Import(int device, int socket);

}  // namespace workloads
