// This process's connection to the broker. While it is open, CRIU refuses to dump the process, as
// it does with one that has a real GPU open. No call here allocates: the restore thread uses them
// all.
#pragma once

#include "base.h"
#include "broker_protocol.h"

namespace softgpu {

// A file that the broker keeps for us, and for whoever knows both numbers.
struct KeepTicket {
  uint64_t key = 0;
  uint64_t token = 0;
};

class BrokerClient {
 public:
  // Reads the environment: where the broker is, and what it shall offer if we are the one to start
  // it.
  void Configure();
  // Starts a broker if there is none. The line on stderr says why it did not work.
  CUresult Connect();
  // Gives everything back; memory that only we had is free when this returns.
  void Disconnect();
  // SAFETY: in the child after fork: takes no lock, and says nothing over what the parent speaks
  // on.
  void AbandonAfterFork() { socket_.Reset(); }
  bool connected() const { return socket_.valid(); }

  const BrokerConfig& config() const { return config_; }
  int device_folder(int physical) const { return devices_[physical].get(); }
  const char* directory() const { return directory_; }

  CUresult Keep(int fd, KeepTicket* ticket);
  CUresult Fetch(const KeepTicket& ticket, Fd* file);
  void Drop(const KeepTicket& ticket);

 private:
  bool Dial();
  bool Spawn();
  bool Call(const BrokerRequest& request, int fd_out, BrokerReply* reply, int* fds, int* count);

  Fd socket_;
  Fd devices_[kMaxDevices];
  BrokerConfig config_;
  std::atomic<uint32_t> busy_{0};  // one exchange at a time
  // Fixed buffers, for the restore thread may have to start the broker again.
  char directory_[96] = {};
  char program_[512] = {};
  char device_count_[16] = {};
  char memory_bytes_[32] = {};
  char context_bytes_[32] = {};
};

// "8G", "512M", "1048576"; 0 when it is no size.
uint64_t ParseSize(const char* text);

}  // namespace softgpu
