// Forwards calls of the gRPC service to workers, as bytes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "api/caller.h"
#include "api/daemon_context.h"
#include "base/result.h"

namespace stasis::api {

// Identifies the caller, from the connection or from its certificate.
using IdentifyCaller = std::function<Result<Caller>(const grpc::CallbackServerContext&)>;

// Returns the status of a failed call, and adds the whole error to the trailing metadata.
grpc::Status ToStatus(grpc::CallbackServerContext& context, const Error& error);

// Each of the following functions forwards one call to a new worker. gRPC owns the result, which
// deletes itself when the call has ended. The other arguments must live until then; those that gRPC
// supplies do.

// A call with one answer.
grpc::ServerUnaryReactor* RelayUnary(DaemonContext& daemon, const IdentifyCaller& identify,
                                     grpc::CallbackServerContext& context, std::string method,
                                     const grpc::ByteBuffer& request, grpc::ByteBuffer& response);
// An operation, whose progress is streamed. It never delays its worker.
grpc::ServerWriteReactor<grpc::ByteBuffer>* RelayOperation(DaemonContext& daemon,
                                                           const IdentifyCaller& identify,
                                                           grpc::CallbackServerContext& context,
                                                           std::string method,
                                                           const grpc::ByteBuffer& request);
// ReadLog, whose worker waits for a slow reader.
grpc::ServerWriteReactor<grpc::ByteBuffer>* RelayLog(DaemonContext& daemon,
                                                     const IdentifyCaller& identify,
                                                     grpc::CallbackServerContext& context,
                                                     const grpc::ByteBuffer& request);

}  // namespace stasis::api
