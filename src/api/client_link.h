// The connection of a Client to the daemon.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <memory>
#include <string>

#include "api/client.h"
#include "base/fd.h"
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

}  // namespace stasis::api
