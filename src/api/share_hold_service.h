// Serves HoldShare.
#pragma once

#include <grpcpp/grpcpp.h>

#include "api/daemon_context.h"
#include "api/relay.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// gRPC owns the reactor, which deletes itself when the call has ended. The arguments must live
// until then.
grpc::ServerBidiReactor<v1::HoldShareRequest, v1::HoldShareResponse>* ServeShareHold(
    DaemonContext& daemon, const IdentifyCaller& identify, grpc::CallbackServerContext& context);

}  // namespace stasis::api
