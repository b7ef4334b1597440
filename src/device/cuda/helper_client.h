// Our side of the device helper: starts it, speaks helper_protocol.h with it, enforces deadlines by
// ending it, and starts a new one when it is needed again.
//
// Threads: any number may call at the same time. One helper serves them all.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "device/cuda/helper_protocol.h"

namespace stasis::device::cuda {

struct HelperOptions {
  std::string program;  // path of stasis-device-helper
  std::string library;  // of the driver; empty: by the loader's search
  int inherit_fd = -1;
  // For the start of a helper, which calls cuInit.
  std::chrono::milliseconds start_timeout{20000};
  // For the end of a helper that was killed; also how long one that is inside the driver may
  // outlive us.
  std::chrono::milliseconds settle_timeout{10000};
};

// Why there is no reply.
struct CallFailure {
  enum class Kind {
    kNotStarted,  // nothing was asked: no helper could be started, or it took until the deadline
    kDeadline,    // the driver may still be at it, or have done it
    kLost,        // the helper died while it worked on this: likewise
  };
  Kind kind;
  Error error;
};

// What happens to a helper whose driver call passes its deadline.
enum class OnDeadline {
  // It is killed at once. Other calls that it works on end with kLost.
  kKill,
  // Nothing was to be changed, so it may finish what it does for others, and is killed after that.
  // New calls go to a new helper.
  kRetire,
};

class HelperClient {
 public:
  using Answer = tl::expected<wire::Reply, CallFailure>;

  explicit HelperClient(HelperOptions options);
  // Ends the helper. No call may be under way.
  ~HelperClient();

  // Sends `request` (its id is filled in) and waits for its reply, which is valid and
  // belongs to it, but may say that the driver refused. A helper that was ended for this call has
  // gone when it returns, unless the kernel cannot end it (a call that hangs in the kernel), which
  // the error then says.
  Answer Call(wire::Request request, const Deadline& deadline, OnDeadline on_deadline);

  // What the driver is; starts the helper, which a caller with a short deadline does first.
  Answer Hello();

  // Of the helper that runs now, 0 for none.
  pid_t helper_pid();

 private:
  class Helper;

  tl::expected<std::shared_ptr<Helper>, CallFailure> Get();
  Result<std::shared_ptr<Helper>> Start();

  const HelperOptions options_;
  std::mutex mutex_;
  std::condition_variable started_;
  bool starting_ = false;
  std::shared_ptr<Helper> current_;
};

}  // namespace stasis::device::cuda
