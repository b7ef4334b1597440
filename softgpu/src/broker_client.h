// This process's connection to the broker. While it is open, CRIU refuses to dump the process, as
// it does with a process that uses a real GPU. The restore thread uses this class, so it allocates
// no memory.
#pragma once

#include "base.h"
#include "broker_protocol.h"

namespace softgpu {

// Identifies a file kept by the broker. Any process that knows both numbers may fetch it.
struct KeepTicket {
  uint64_t key = 0;
  uint64_t token = 0;
};

class BrokerClient {
 public:
  // Reads the environment: the broker's directory, and the number and memory of the devices of a
  // broker that this process starts. `hip`: use the folders of HIP's device files.
  void Configure(bool hip);
  // Connects to the broker, and starts one if there is none. Prints the reason for a failure on
  // stderr.
  CUresult Connect();
  // Disconnects. Memory that only this process used is free on return.
  void Disconnect();
  // SAFETY: called in the child after fork, so it takes no lock and sends nothing on the parent's
  // connection.
  void AbandonAfterFork() { socket_.Reset(); }
  bool connected() const { return socket_.valid(); }
  // Returns true if the broker has ended, and the connection with it.
  bool IsLost() const;

  const BrokerConfig& config() const { return config_; }
  int device_folder(int physical) const { return devices_[physical].get(); }
  const char* directory() const { return directory_; }

  CUresult Keep(int fd, KeepTicket* ticket);
  CUresult Fetch(const KeepTicket& ticket, Fd* file);
  void Drop(const KeepTicket& ticket);

 private:
  // Returns false, with a line on stderr, for a directory that another user may have created or can
  // change. A missing directory is accepted.
  bool TrustFolder();
  bool Dial();
  bool Spawn();
  struct Answer;
  // Sends a request, with a file unless `fd_out` is -1, and waits for the answer.
  bool Call(BrokerOp op, const KeepTicket& ticket, int fd_out, Answer* answer);

  Fd socket_;
  Fd devices_[kMaxDevices];
  BrokerConfig config_;
  std::atomic<uint32_t> busy_{0};  // one exchange at a time
  // Fixed buffers, because the restore thread may have to start the broker again.
  char directory_[96] = {};
  bool hip_ = false;
  bool chosen_ = false;  // set by SOFTGPU_DIR
  uid_t folder_owner_ = 0;
  char program_[512] = {};
  char device_count_[16] = {};
  char memory_bytes_[32] = {};
  char context_bytes_[32] = {};
  char first_device_[32] = {};  // an environment variable of the broker
};

// Parses "8G", "512M", "1048576"; returns 0 if invalid.
uint64_t ParseSize(const char* text);

}  // namespace softgpu
