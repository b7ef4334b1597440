// The listener for CRIU's plugin (integrations/criu): the socket criu.sock beside the daemon's own.
// Each connection goes to a worker, which holds one program for one CRIU (operations/hold.h).
#pragma once

#include <memory>
#include <string>

#include "api/daemon_context.h"
#include "base/fd.h"
#include "base/file.h"

namespace stasis::api {

class CriuListener {
 public:
  // Replaces the socket. If its path is too long, logs a warning and does not listen. Call this
  // after the daemon has created its own socket, because the lock of that socket excludes other
  // daemons.
  static Result<std::unique_ptr<CriuListener>> Start(DaemonContext& daemon);
  ~CriuListener() { Stop(); }

  // This descriptor is readable when a connection waits; call Accept() then.
  int listener() const { return listener_.get(); }
  // Returns false if no descriptor is free. The caller should then pause before the next attempt.
  bool Accept();
  // Removes the socket. Holds in progress continue.
  void Stop();

 private:
  explicit CriuListener(DaemonContext& daemon) : daemon_(daemon) {}
  Status Bind();
  Status Serve(UniqueFd connection);

  DaemonContext& daemon_;
  std::string path_;
  FileId bound_;
  UniqueFd listener_;
};

}  // namespace stasis::api
