// Counts the connections that were accepted and handed to gRPC.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>

namespace stasis::api {

// Returns false if `fd` lies in the last quarter of the descriptor limit, which is reserved for
// workers and for gRPC (gRPC aborts the process if it gets no descriptor). The kernel always
// assigns the lowest free number, so a high number means that few are free.
bool LeavesFreeDescriptors(int fd);

// The open connections. gRPC does not report when it closes a connection, and the descriptor may be
// reused for another file. An open connection is therefore recognised by its socket's inode. Must
// be used by one thread only.
class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  // Must be called before gRPC gets the descriptor. `owner` is a user or an address.
  void Add(int fd, std::string owner);
  void ForgetClosed();

  size_t count() const { return open_.size(); }
  size_t CountOf(const std::string& owner) const;
  // Return the number of connections that were accepted less than `age` ago.
  size_t CountYounger(std::chrono::milliseconds age) const;
  size_t CountYoungerOf(const std::string& owner, std::chrono::milliseconds age) const;

 private:
  struct Connection {
    ino_t socket;
    std::string owner;
    Clock::time_point accepted;
  };
  std::map<int, Connection> open_;
};

}  // namespace stasis::api
