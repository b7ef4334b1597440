// The options of every operation.
#pragma once

#include <chrono>
#include <functional>

#include "gpu_state/away.h"
#include "plan/account.h"

namespace stasis::operations {

struct OperationOptions : gpu_state::AwayOptions {
  std::chrono::milliseconds timeout{0};  // for each phase; 0 means the phase's default
  bool dry_run = false;                  // survey and plan, but change nothing
  plan::Progress progress;
  std::function<bool()> cancelled;
};

}  // namespace stasis::operations
