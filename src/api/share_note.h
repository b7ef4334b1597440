// Serves NoteShare. A job that is about to start waits for a survey.
#pragma once

#include <grpcpp/grpcpp.h>

#include "api/daemon_context.h"
#include "api/relay.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// gRPC owns the reactor, which deletes itself when the call has ended. The arguments must live
// until then.
grpc::ServerUnaryReactor* NoteShareOf(DaemonContext& daemon, const IdentifyCaller& identify,
                                      grpc::CallbackServerContext& context,
                                      const v1::NoteShareRequest& request);

}  // namespace stasis::api
