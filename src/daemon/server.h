// Where the daemon can be reached: a unix socket for the users of this machine, and TCP for those
// who show a certificate.
#pragma once

#include <memory>

#include "base/fd.h"
#include "daemon/connections.h"
#include "daemon/doors.h"

namespace stasis::daemon {

class Server {
 public:
  // The socket is made anew and is everybody's to connect to, if we are root; else ours. kAborted:
  // another daemon has it. With `settings.daemon_listen` a TCP server is started too.
  static Result<std::unique_ptr<Server>> Start(House& house);
  ~Server();

  // Readable when somebody connects: then Accept.
  int listener() const { return listener_.get(); }
  // False: nobody can be let in for the moment (descriptors are used up), so it is of no use to try
  // again at once.
  bool Accept();
  // The socket goes; what is under way goes on.
  void Stop();

 private:
  explicit Server(House& house) : house_(house), doors_(house) {}
  Status Bind();
  // Whatever gRPC makes only once is made now: later it might lack descriptors, and end the
  // process.
  Status WarmUp();
  Status CheckConnections(uid_t account);

  House& house_;
  UniqueFd lock_;
  UniqueFd listener_;
  Doors doors_;
  Connections connections_;
};

}  // namespace stasis::daemon
