// Connections that were accepted and given to gRPC.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>

namespace stasis::daemon {

// A quarter of the descriptors is for workers and for gRPC, which ends the process when it gets
// none. The kernel gives the lowest one that is free.
bool LeavesRoom(int fd);

// gRPC does not say when it has closed one, and the number may be another file's by then: an open
// one is known by its socket. Called by one thread.
class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  // Before it is given to gRPC.
  void Add(int fd, std::string whose);
  void ForgetClosed();

  size_t count() const { return open_.size(); }
  size_t CountOf(const std::string& whose) const;
  // Those that were accepted within `age` before now.
  size_t CountYounger(std::chrono::milliseconds age) const;
  size_t CountYoungerOf(const std::string& whose, std::chrono::milliseconds age) const;

 private:
  struct Connection {
    ino_t socket;
    std::string whose;
    Clock::time_point came;
  };
  std::map<int, Connection> open_;
};

}  // namespace stasis::daemon
