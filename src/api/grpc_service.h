// The gRPC service. The daemon itself does not access users' files or programs. It forwards each
// call, as bytes, to a worker with the caller's credentials (worker.h).
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "api/daemon_context.h"
#include "api/relay.h"
#include "stasis/v1/stasis.grpc.pb.h"

namespace stasis::api {

std::unique_ptr<grpc::Service> MakeService(DaemonContext& daemon, IdentifyCaller identify);

}  // namespace stasis::api
