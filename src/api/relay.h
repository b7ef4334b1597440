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

// Returns a request without a method, with the caller's credentials, folders and settings.
Result<v1::WorkerRequest> WorkOf(const DaemonContext& daemon, const Caller& caller,
                                 const grpc::CallbackServerContext& context);

// Each of the following functions forwards one call to a new worker and returns its reactor. gRPC
// owns the reactor, which deletes itself when the call has ended. The arguments must live until
// then; gRPC ensures this for those that it supplies.

// Relays a call that has one answer.
grpc::ServerUnaryReactor* RelayUnary(DaemonContext& daemon, const IdentifyCaller& identify,
                                     grpc::CallbackServerContext& context, std::string method,
                                     const grpc::ByteBuffer& request, grpc::ByteBuffer& response);
// Relays an operation and streams its progress. A slow client never delays the worker.
grpc::ServerWriteReactor<grpc::ByteBuffer>* RelayOperation(DaemonContext& daemon,
                                                           const IdentifyCaller& identify,
                                                           grpc::CallbackServerContext& context,
                                                           std::string method,
                                                           const grpc::ByteBuffer& request);
// Relays ReadLog. The worker waits for a slow client.
grpc::ServerWriteReactor<grpc::ByteBuffer>* RelayLog(DaemonContext& daemon,
                                                     const IdentifyCaller& identify,
                                                     grpc::CallbackServerContext& context,
                                                     const grpc::ByteBuffer& request);

}  // namespace stasis::api
