// The gRPC service. The daemon itself does not access users' files or programs. It forwards each
// call, as bytes, to a worker with the caller's credentials (worker.h).
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "api/caller.h"
#include "api/daemon_context.h"
#include "stasis/v1/stasis.grpc.pb.h"

namespace stasis::api {

// Identifies the caller, from the connection or from its certificate.
using IdentifyCaller = std::function<Result<Caller>(const grpc::CallbackServerContext&)>;

std::unique_ptr<grpc::Service> MakeService(DaemonContext& daemon, IdentifyCaller identify);

}  // namespace stasis::api
