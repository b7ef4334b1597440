// The gRPC servers of the daemon. Connections to the unix socket are distributed over one server
// for each set of credentials (user, group, supplementary groups), so that a service knows its
// caller and cannot mistake one for another.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "api/grpc_service.h"

namespace stasis::api {

// Limit for the TLS handshake of a connection.
inline constexpr int kHandshakeMs = 10000;

// The health service of each server answers NOT_SERVING from the start of a drain.
class ServerPool {
 public:
  static constexpr size_t kMaxServers = 1024;
  // Part of kMaxServers that is reserved for root and the daemon's own user.
  static constexpr size_t kReservedServers = 64;
  // The limit for one user. It includes servers for the user's subordinate ids, and for processes
  // of the user that differ in their groups.
  static constexpr size_t kMaxServersOfUser = 64;

  explicit ServerPool(DaemonContext& daemon);

  // Returns the server for the credentials of a new connection, and starts it if there is none. At
  // a limit it first closes the idle server whose last connection is the oldest, with its
  // connections; gRPC clients then reconnect by themselves. Returns kResourceExhausted if no server
  // is idle. Must be called by one thread only.
  Result<grpc::Server*> ServerFor(const Caller& caller);
  // Starts a server for all callers that `identify` accepts. It is never closed.
  Result<grpc::Server*> AddShared(grpc::ServerBuilder& builder, IdentifyCaller identify);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::unique_ptr<grpc::Service> service;
    std::unique_ptr<grpc::Server> server;
    Clock::time_point last_connection;
  };

  Result<Entry> Start(grpc::ServerBuilder& builder, IdentifyCaller identify);
  Status MakeRoomFor(const Caller& caller);
  // Returns false if no idle server can be closed. With `account`, closes only a server of that
  // user.
  bool CloseIdleServer(const uid_t* account);
  void UpdateHealth();

  DaemonContext& daemon_;
  std::mutex mutex_;  // guards the servers, which a drain uses from its own thread
  std::map<Caller, Entry> servers_;
  std::vector<Entry> shared_;
};

}  // namespace stasis::api
