// The gRPC servers of the daemon. Behind its socket there is one for each kind of caller (user,
// group, further groups): a service that knows its caller cannot mistake one for another.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "daemon/service.h"

namespace stasis::daemon {

// In which a connection has shown who it is.
inline constexpr int kHandshakeMs = 10000;

// The health service of each answers NOT_SERVING as soon as the daemon is drained.
class Doors {
 public:
  // Of all callers; of these, for root and the daemon's own user; of one user with all his
  // subordinate ids and groups.
  static constexpr size_t kMax = 1024;
  static constexpr size_t kKept = 64;
  static constexpr size_t kMaxOfAccount = 64;

  explicit Doors(House& house);

  // The server for a caller who has connected, made where there is none. Where there are as many as
  // may be, the one to which nobody has come for longest goes, with its connections, if no call of
  // it is under way; a caller who has connections then has to connect again, as gRPC does by
  // itself. kResourceExhausted: there is none. Called by one thread.
  Result<grpc::Server*> For(const Caller& caller);
  // One that is for all who come to it, and stays.
  Result<grpc::Server*> Add(grpc::ServerBuilder& builder, WhoCalls who);

 private:
  using Clock = std::chrono::steady_clock;
  struct Door {
    std::unique_ptr<grpc::Service> service;
    std::unique_ptr<grpc::Server> server;
    Clock::time_point came;
  };

  Result<Door> Make(grpc::ServerBuilder& builder, WhoCalls who);
  Status MakeRoom(const Caller& caller);
  // False: there is none that may go. `account`: of that one's only.
  bool CloseOneThatIsIdle(const uid_t* account);
  void SetHealth();

  House& house_;
  std::mutex mutex_;  // of all below, which a drain looks at too
  std::map<Caller, Door> doors_;
  std::vector<Door> others_;
};

}  // namespace stasis::daemon
