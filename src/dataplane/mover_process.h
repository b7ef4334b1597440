// The process of a mover and its socket (mover_protocol.h): finds a resident mover or starts a new
// one, sends one request at a time, and kills it if it exceeds a deadline.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/stop_event.h"
#include "dataplane/mover_protocol.h"
#include "device/device_control.h"
#include "ipc/helper_process.h"
#include "ipc/resident.h"

namespace stasis::dataplane {

struct MoverOptions {
  std::string program;  // path of stasis-mover
  device::GpuUuid gpu;
  std::string library;  // driver library; empty: the loader's search
  // A lock that the mover holds while it works for this client, or -1: see ipc::HelperCommand.
  int inherit_fd = -1;
  // Idle time after which a resident mover exits, which releases its context and registered memory.
  // If 0, the mover is not resident and exits with its client.
  std::chrono::milliseconds idle_timeout{0};
  // Directory of the socket by which later commands find a resident mover. If empty, the mover is
  // not resident.
  std::string resident_dir;
  // Time limit for the exit of a killed mover.
  std::chrono::milliseconds settle_timeout{10000};
};

// Minimum time for releasing memory, which must happen even after the deadline.
constexpr std::chrono::milliseconds kReleaseLimit{10000};

class MoverProcess {
 public:
  explicit MoverProcess(MoverOptions options) : options_(std::move(options)) {}
  MoverProcess(const MoverProcess&) = delete;

  // Returns the pid of the mover, or 0.
  pid_t pid() const { return helper_ ? helper_->pid() : 0; }
  // Returns true if a mover is connected.
  bool connected() const { return helper_ && helper_->socket() >= 0; }
  // Returns true if the mover stays after this client.
  bool resident() const { return helper_ && helper_->resident(); }

  // Called with the number of bytes copied.
  using Progress = std::function<void(uint64_t)>;
  // Sends a request to the connected mover. `out` receives the reply's descriptors. If a stop is
  // requested before the reply, kills the mover and returns kCancelled.
  Result<wire::Reply> Call(wire::Request request, std::span<const int> fds,
                           const Deadline& deadline, const Progress& progress = {},
                           std::vector<UniqueFd>* out = nullptr, const std::stop_token& stop = {});
  // Like Call, but starts a mover if none is connected or the connected one has died.
  Result<wire::Reply> CallOrStart(const wire::Request& request, std::span<const int> fds,
                                  const Deadline& deadline);

  // Stops the mover and waits for its exit. A resident one releases everything that it holds for
  // this client and keeps running.
  Status Stop();

 private:
  Status Connect(const Deadline& deadline);
  Result<bool> ConnectToResident(const Deadline& deadline);
  Result<ipc::Greeting> Greet(ipc::HelperProcess& helper, const Deadline& deadline);
  Status EndSession();
  // Waits for the next packet of the reply. Kills the mover if none comes.
  Status AwaitReply(wire::Op op, const StopEvent* stop, const Deadline& deadline);
  // Kills the mover and returns how it ended.
  std::string Kill();

  const MoverOptions options_;
  // Kept after Kill() while the process hangs in the kernel.
  std::optional<ipc::HelperProcess> helper_;
  uint64_t last_id_ = 0;
};

// Asks all resident movers of this user in `dir` without a client to exit, kills hung ones, and
// waits until their memory is free. Returns the number of movers stopped.
Result<int> DismissMovers(const std::string& dir, const Deadline& deadline);

}  // namespace stasis::dataplane
