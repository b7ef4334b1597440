// Keeps the daemon away from a program that shares GPUs while this process works on the program
// itself. The daemon's connection to the agent would be in the way of a dump, and a swap could
// begin in the middle of it.
#pragma once

#include <memory>
#include <string>

#include "api/call.h"
#include "base/result.h"

namespace stasis::api {

class ShareHold {
 public:
  // The work has failed, unless Finish was called before. The daemon surveys the program again. It
  // also does so when this process is killed.
  virtual ~ShareHold() = default;
  virtual void Finish(bool ok) = 0;
};

// Waits until the daemon has finished a swap of the program and has disconnected from its agents.
// `method` is what this process is about to do. Returns null if no daemon answers, or if the
// program does not share GPUs. Returns kCancelled when `cancel_fd` becomes readable; -1: never.
Result<std::unique_ptr<ShareHold>> HoldShare(const Call& call, const std::string& target,
                                             const std::string& method, int cancel_fd);

}  // namespace stasis::api
