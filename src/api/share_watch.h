// Answers ListShares, at once or when the picture changes.
#pragma once

#include <grpcpp/grpcpp.h>

#include "api/daemon_context.h"
#include "api/relay.h"

namespace stasis::api {

grpc::ServerUnaryReactor* AnswerShares(DaemonContext& daemon, const IdentifyCaller& identify,
                                       grpc::CallbackServerContext& context,
                                       const v1::ListSharesRequest& request,
                                       v1::ListSharesResponse& response);

}  // namespace stasis::api
