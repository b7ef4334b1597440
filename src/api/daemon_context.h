// The state that all servers of a daemon share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "api/daemon_metrics.h"
#include "api/operation_table.h"
#include "api/share_service.h"
#include "api/usage_watch.h"
#include "base/clock.h"
#include "config/settings.h"

namespace stasis::api {

struct DaemonContext {
  config::Settings settings;
  std::string socket_path;
  std::string listen_address;  // HOST:PORT; empty if TCP is not served
  const int64_t started_ms = NowMs();
  OperationTable operations;
  DaemonMetrics metrics{started_ms};
  UsageWatch usage{metrics};
  std::unique_ptr<ShareService> share;  // set before the first call is served
  std::string metrics_address;          // HOST:PORT; empty if metrics are not served
  // Ends the daemon. Called when the daemon is drained.
  std::function<void()> stop;
};

}  // namespace stasis::api
