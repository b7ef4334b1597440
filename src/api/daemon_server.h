// The listeners of the daemon: a unix socket for the users of this machine, and TCP for callers
// with a certificate.
#pragma once

#include <memory>

#include "api/connections.h"
#include "api/server_pool.h"
#include "base/fd.h"

namespace stasis::api {

class DaemonServer {
 public:
  // Replaces the socket of a dead daemon. All users can connect to a daemon of root; only its own
  // user can connect to any other daemon. Serves TCP too if `settings.daemon_listen` is set.
  // Returns kAborted if another daemon uses the socket.
  static Result<std::unique_ptr<DaemonServer>> Start(DaemonContext& daemon);
  ~DaemonServer();

  // Readable when a connection waits; call Accept() then.
  int listener() const { return listener_.get(); }
  // Returns false if no descriptor is free. The caller should then pause before the next attempt.
  bool Accept();
  // Removes the socket. Calls in progress continue.
  void Stop();

 private:
  explicit DaemonServer(DaemonContext& daemon) : daemon_(daemon), servers_(daemon) {}
  Status Bind();
  // Makes gRPC open its process-wide descriptors now, because gRPC aborts the process if it cannot
  // open one later.
  Status WarmUp();
  Status CheckConnections(uid_t account);

  DaemonContext& daemon_;
  UniqueFd lock_;
  UniqueFd listener_;
  ServerPool servers_;
  Connections connections_;
};

}  // namespace stasis::api
