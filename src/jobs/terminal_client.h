// A client of the shim of a job with a terminal: see shim/terminal_protocol.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "jobs/job.h"
#include "shim/terminal_protocol.h"

namespace stasis::jobs {

// Not thread-safe.
class TerminalClient {
 public:
  struct Packet {
    shim::TerminalKind kind{};  // kOutput, kSkipped or kHolder
    uint64_t value = 0;
    std::string bytes;
  };
  struct Pair;

  // Makes a socket pair for a shim that is about to start: this side, and the shim's side
  // (StdioSpec::client_fd). The client has already asked for the input (kHello).
  static Result<Pair> MakePair(shim::WindowSize size);
  // Connects to the shim of the job in `folder`. Errors: kNotFound if it has no terminal,
  // kPermissionDenied if it belongs to another user, kUnimplemented if the shim has another
  // version, kUnavailable if no shim answers.
  static Result<TerminalClient> Connect(const std::string& folder, shim::WindowSize size,
                                        bool wants_input, const Deadline& deadline);

  int fd() const { return socket_.get(); }
  // Returns the next packet without blocking, or nothing if there is none. Returns kUnavailable if
  // the job or its shim has ended; other errors as for Connect.
  Result<std::optional<Packet>> Receive();
  // Queues typed bytes and sends as many as the shim accepts. While pending() is not 0, call this
  // again when fd() is writable.
  void SendInput(std::string_view bytes);
  size_t pending() const { return input_.size(); }
  void SendSize(shim::WindowSize size);

 private:
  explicit TerminalClient(UniqueFd socket) : socket_(std::move(socket)) {}
  Status Greet(shim::WindowSize size, bool wants_input);

  UniqueFd socket_;
  std::string input_;
};

struct TerminalClient::Pair {
  TerminalClient client;
  UniqueFd shim_side;
};

}  // namespace stasis::jobs
