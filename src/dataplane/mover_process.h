// A mover's process and the socket to it: found where it has stayed or started, asked one request
// at a time (mover_protocol.h), ended when it passes a deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/subprocess.h"
#include "dataplane/mover_protocol.h"
#include "device/device_control.h"

namespace stasis::dataplane {

struct MoverOptions {
  std::string program;  // path of stasis-mover
  device::GpuUuid gpu;
  std::string library;  // of the driver; empty: by the loader's search
  int inherit_fd = -1;  // held by the mover as long as it works for us, as the device helper does
  // How long it stays without work, its context and registered memory with it; 0: as long as we.
  std::chrono::milliseconds idle_timeout{0};
  // With an idle_timeout: the folder by which the next command finds it; empty: it goes with us.
  std::string resident_dir;
  // For the end of one that was killed.
  std::chrono::milliseconds settle_timeout{10000};
};

// For what must not be skipped although the deadline has passed: to let go of memory.
constexpr std::chrono::milliseconds kReleaseLimit{10000};

class MoverProcess {
 public:
  explicit MoverProcess(MoverOptions options) : options_(std::move(options)) {}
  MoverProcess(const MoverProcess&) = delete;

  // Of the one that runs, 0 for none.
  pid_t pid() const { return pid_; }
  // One has been started or found, and has not been lost since.
  bool connected() const { return socket_.valid(); }

  // Called with the bytes that have arrived.
  using Progress = std::function<void(uint64_t)>;
  // Of the one that is connected. `out` takes the reply's descriptors.
  Result<wire::Reply> Call(wire::Request request, std::span<const int> fds,
                           const Deadline& deadline, const Progress& progress = {},
                           std::vector<UniqueFd>* out = nullptr);
  // The same for what may start a mover: a resident one may just have left.
  Result<wire::Reply> CallOrStart(const wire::Request& request, std::span<const int> fds,
                                  const Deadline& deadline);

  // Ends it and waits for that. One that may stay lets go of all that is ours, and stays.
  Status Stop();

 private:
  Status Connect(const Deadline& deadline);
  // Absent: it cannot be had, which is no reason not to start one of our own.
  Result<bool> ConnectToResident(const Deadline& deadline);
  Status Spawn(const std::string& listen_path, int listen_fd);
  Status Farewell();
  bool running() const { return pidfd_.valid(); }
  // Kills it; how it ended.
  std::string End();
  // It is no business of ours any more, running or not.
  void Forget();
  // Reaps it if it is our child. False: it still runs.
  bool WaitEnd(const Deadline& deadline, std::string* how = nullptr);

  const MoverOptions options_;
  std::optional<Subprocess> child_;  // when we have started it
  UniqueFd pidfd_;
  pid_t pid_ = 0;
  bool resident_ = false;
  UniqueFd socket_;
  uint64_t last_id_ = 0;
};

}  // namespace stasis::dataplane
