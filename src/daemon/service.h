// The gRPC service of one kind of caller. What changes or reads anything of a user is passed on, as
// bytes, to a worker with that user's rights (worker.h): the daemon itself looks at none of it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "config/settings.h"
#include "daemon/caller.h"
#include "daemon/measures.h"
#include "daemon/operations.h"
#include "daemon/usage_watch.h"
#include "stasis/v1/stasis.grpc.pb.h"

namespace stasis::daemon {

// What all services of a daemon share.
struct House {
  config::Settings settings;
  std::string socket;
  std::string listen;
  const int64_t started_ms = NowMs();
  Operations operations;
  Measures measures{started_ms};
  UsageWatch usage{measures};
  std::string metrics;  // where they are served; empty: nowhere
  // Called once all is drained: the daemon ends.
  std::function<void()> end;
};

// Who makes a call: known from the connection, or from its certificate.
using WhoCalls = std::function<Result<Caller>(const grpc::CallbackServerContext&)>;

// The headers beside a call: v1::CallContext, and v1::Error where it fails.
inline constexpr char kContextHeader[] = "stasis-context-bin";
inline constexpr char kErrorHeader[] = "stasis-error-bin";
inline constexpr int kMaxHeaderBytes = 64 << 10;

std::unique_ptr<grpc::Service> MakeService(House& house, WhoCalls who);

}  // namespace stasis::daemon
