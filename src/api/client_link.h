// The connection of a Client to the daemon.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <memory>
#include <string>

#include "api/client.h"
#include "base/fd.h"
#include "base/result.h"
#include "stasis/v1/stasis.grpc.pb.h"

namespace stasis::api {

struct DaemonProcess {
  pid_t pid = 0;
  UniqueFd pidfd;  // empty if the daemon is outside of this process's pid namespace
};

struct Client::Link {
  std::string socket;
  DaemonProcess daemon;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Stasis::Stub> stub;
  std::string context;  // the context header of each call
};

// Converts a failed call's status to an error. `changes` is true if the call changes something. If
// the connection was lost during such a call, its outcome is unknown.
Error ToError(const grpc::ClientContext& context, const grpc::Status& status, bool changes = false);

}  // namespace stasis::api
