// Two programs that share GPU memory: the child owns it, and the parent opens it. In each round
// both change it and check the other's changes. The child exits when its parent does.
//
// A Sharing defines how the memory is shared. The main() of such a program calls SharingMain.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "common/gpu.h"

namespace workloads {

inline constexpr uint32_t kSharedWords = 3u << 18;  // more than the agent leaves to the driver

// I/O on the socket between the two. A short transfer ends the program with FAILED.
void WriteAll(int fd, const void* data, size_t size);
// Returns false at end-of-file.
bool ReadAll(int fd, void* data, size_t size);
// Sends one byte with a descriptor, which the sender keeps.
void SendDescriptor(int socket, int fd);
int ReceiveDescriptor(int socket);

struct ChildProcess {
  pid_t pid = 0;
  int socket = -1;  // its other end is the child's standard input

  // Starts this program again as its own child, with the device and memory of `options`. The child
  // does not get the environment variable `unset`.
  void Start(const Options& options, const char* unset = nullptr);
  // Waits for the end of the child. Fails unless the child succeeded.
  void AwaitSuccess() const;
};

class Sharing {
 public:
  virtual ~Sharing() = default;
  // In the child: allocates memory with the content `words` for the parent to open; returns its
  // address.
  virtual CUdeviceptr Give(const Options& options, const std::vector<uint32_t>& words,
                           int socket) = 0;
  virtual void Free() = 0;
  // In the parent: opens the memory that the child has allocated, and returns its address.
  virtual CUdeviceptr Open(const Options& options, int socket) = 0;
  virtual void Close() = 0;
  // Override these if the parent also works on memory that it does not share.
  virtual void Round(uint64_t) {}
  virtual void Verify() {}
};

int SharingMain(int argc, char** argv, std::unique_ptr<Sharing> sharing);

}  // namespace workloads
