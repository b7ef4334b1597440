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
  // Replaces the socket. A daemon of root lets everybody connect, any other only its own user.
  // kAborted if another daemon has the socket. With `settings.daemon_listen` it serves TCP too.
  static Result<std::unique_ptr<DaemonServer>> Start(DaemonContext& daemon);
  ~DaemonServer();

  // Readable when a connection waits; call Accept() then.
  int listener() const { return listener_.get(); }
  // Returns false if descriptors are used up, so that the caller pauses before the next attempt.
  bool Accept();
  // Removes the socket. Calls under way continue.
  void Stop();

 private:
  explicit DaemonServer(DaemonContext& daemon) : daemon_(daemon), servers_(daemon) {}
  Status Bind();
  // Makes gRPC open its process-wide descriptors now: if it lacked one later, it would abort.
  Status WarmUp();
  Status CheckConnections(uid_t account);

  DaemonContext& daemon_;
  UniqueFd lock_;
  UniqueFd listener_;
  ServerPool servers_;
  Connections connections_;
};

}  // namespace stasis::api
