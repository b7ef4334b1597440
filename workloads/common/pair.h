// Two programs that share GPU memory: the child's, which the parent has open. Each round both
// change it and each sees what the other has done. The child ends when its parent does.
//
// How they share is a Sharing. A program's main() is SharingMain.
#pragma once

#include <memory>
#include <vector>

#include "common/gpu.h"

namespace workloads {

inline constexpr uint32_t kSharedWords = 3u << 18;  // more than an agent leaves to the driver

// A socket between the two; what is cut short ends the program, with FAILED.
void WriteAll(int fd, const void* data, size_t size);
// False at the end.
bool ReadAll(int fd, void* data, size_t size);
// With a descriptor beside the byte; it stays the sender's.
void SendDescriptor(int socket, int fd);
int ReceiveDescriptor(int socket);

class Sharing {
 public:
  virtual ~Sharing() = default;
  // In the child: memory that holds `words`, for the parent to open; its address.
  virtual CUdeviceptr Give(const Options& options, const std::vector<uint32_t>& words,
                           int socket) = 0;
  virtual void Free() = 0;
  // In the parent: that memory, wherever it is mapped here.
  virtual CUdeviceptr Open(const Options& options, int socket) = 0;
  virtual void Close() = 0;
  // Of what it has beside that, in the parent.
  virtual void Round(uint64_t) {}
  virtual void Verify() {}
};

int SharingMain(int argc, char** argv, std::unique_ptr<Sharing> sharing);

}  // namespace workloads
