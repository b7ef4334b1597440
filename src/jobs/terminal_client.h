// One end of a conversation with the shim of a job that has a terminal: see
// shim/terminal_protocol.h.
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

// Not thread safe.
class TerminalClient {
 public:
  struct Packet {
    shim::TerminalKind kind{};  // kOutput, kSkipped or kHolder
    uint64_t value = 0;
    std::string bytes;
  };
  struct Pair;

  // For a shim that is yet to be started: this side, and the one that it gets as
  // StdioSpec::client_fd. With the input.
  static Result<Pair> MakePair(shim::WindowSize size);
  // `folder`: of the job. kNotFound: it has no terminal; kPermissionDenied: it is another user's;
  // kUnimplemented: its shim is of another version of Stasis; kUnavailable: no shim answers.
  static Result<TerminalClient> Connect(const std::string& folder, shim::WindowSize size,
                                        bool wants_input, const Deadline& deadline);

  int fd() const { return socket_.get(); }
  // The next one, without waiting: absent when there is none yet. kUnavailable: the job has ended,
  // or its shim; other codes as of Connect.
  Result<std::optional<Packet>> Receive();
  // Takes typed bytes, and sends them as far as the shim takes them. Asked again when fd() can be
  // written to, as long as `pending`.
  void SendInput(std::string_view bytes);
  size_t pending() const { return input_.size(); }
  void SendSize(shim::WindowSize size);

 private:
  explicit TerminalClient(UniqueFd socket) : socket_(std::move(socket)) {}
  bool Send(const shim::TerminalHeader& header, std::string_view payload = {});
  Status Greet(shim::WindowSize size, bool wants_input);

  UniqueFd socket_;
  std::string input_;
};

struct TerminalClient::Pair {
  TerminalClient client;
  UniqueFd shim_side;
};

}  // namespace stasis::jobs
