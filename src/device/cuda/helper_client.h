// Client of the device helper: finds a resident one or starts one, sends requests
// (helper_protocol.h), enforces deadlines by killing it, and gets another one when needed.
//
// Thread-safe. All threads share one helper.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "device/cuda/helper_protocol.h"
#include "ipc/helper_process.h"

namespace stasis::device::cuda {

inline constexpr char kHelperProgram[] = "stasis-device-helper";  // in libexec/

struct HelperOptions {
  std::string program;  // path of stasis-device-helper
  std::string library;  // driver library; empty: the loader's search
  int inherit_fd = -1;
  // If both are set, later commands find the helper in this directory, and it exits after this time
  // without a client. Otherwise it exits with its client.
  std::string resident_dir;
  std::chrono::milliseconds idle_timeout{0};
  // Time limit for the start of a helper, which calls cuInit.
  std::chrono::milliseconds start_timeout{20000};
  // How long to wait for a killed helper to exit. Also how long a helper inside a driver call may
  // outlive its client.
  std::chrono::milliseconds settle_timeout{10000};
};

// The reason why a call has no reply.
struct CallFailure {
  enum class Kind {
    kNotStarted,  // nothing was sent: the helper could not be started in time
    kDeadline,    // the driver may still execute the call, or may have completed it
    kLost,        // the helper died during the call; the same uncertainty applies
  };
  Kind kind;
  Error error;
};

// The treatment of a helper whose driver call exceeds its deadline.
enum class OnDeadline {
  // Kill it at once. Other calls that it executes end with kLost.
  kKill,
  // For calls without side effects: let it finish other calls and then kill it. New calls go to a
  // new helper.
  kRetire,
};

class HelperClient {
 public:
  using Answer = tl::expected<wire::Reply, CallFailure>;

  explicit HelperClient(HelperOptions options);
  // Stops a private helper. Ends the session with a resident one, which then releases the lock and
  // keeps running. No call may be in progress.
  ~HelperClient();

  // Sends `request`, with its id filled in, and waits for the reply. The reply is valid and matches
  // the request, but may report a driver error. A helper killed for this call has exited when Call
  // returns, unless it blocks in the kernel; the error says so then.
  Answer Call(wire::Request request, const Deadline& deadline, OnDeadline on_deadline);

  // Returns information about the driver. Starts the helper, so callers with short deadlines call
  // this first.
  Answer Hello();

  // Returns the pid of the current helper, or 0.
  pid_t helper_pid();

 private:
  class Helper;

  tl::expected<std::shared_ptr<Helper>, CallFailure> Get();
  Result<std::shared_ptr<Helper>> Start();
  Result<ipc::HelperProcess> OpenProcess();

  const HelperOptions options_;
  std::mutex mutex_;
  std::condition_variable started_;
  bool starting_ = false;
  std::shared_ptr<Helper> current_;
};

// Asks all resident device helpers of this user in `dir` that have no client to exit, kills hung
// ones, and waits for them. Returns the number of helpers stopped.
Result<int> DismissHelpers(const std::string& dir, const Deadline& deadline);

}  // namespace stasis::device::cuda
