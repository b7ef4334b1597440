// Where the daemon can be reached: a unix socket for the users of this machine, and TCP for those
// who show a certificate.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "daemon/service.h"

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
  struct Door {
    std::unique_ptr<grpc::Service> service;
    std::unique_ptr<grpc::Server> server;
  };

  explicit Server(House& house) : house_(house) {}
  Status Bind();
  // Whatever gRPC makes only once is made now: later it might lack descriptors, and end the
  // process.
  Status WarmUp();
  Status ListenTcp();
  Result<Door*> DoorOf(const Caller& caller);
  Status CheckConnections(uid_t uid);

  House& house_;
  UniqueFd lock_;
  UniqueFd listener_;
  // One each for who has come: a service that knows its caller cannot mistake one for another.
  std::map<Caller, Door> doors_;
  Door tcp_;
  // Descriptors that were given to gRPC, which does not say when it has closed one: the number may
  // be another file's by then.
  struct Connection {
    ino_t socket;
    uid_t uid;
  };
  std::map<int, Connection> connections_;
};

}  // namespace stasis::daemon
