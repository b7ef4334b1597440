#include "agent_client/connection.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "agent_client/find.h"
#include "base/deadline.h"

namespace stasis::agent_client {

using namespace agent_protocol;  // NOLINT: the messages

namespace {

using std::chrono::milliseconds;

// Time limit for an agent to close its end, which it does at once unless its program is stopped or
// frozen.
constexpr milliseconds kDisconnectTime{2000};
// Error::raw of a connection that the agent has ended.
constexpr int64_t kEnded = 1;

constexpr Code kCodes[] = {
    Code::kOk,                  // kOk
    Code::kFailedPrecondition,  // kWrongState
    Code::kInternal,            // kMalformed
    Code::kAborted,             // kBusy
    Code::kDeadlineExceeded,    // kDeadline
    Code::kUnavailable,         // kDriver
    Code::kUnimplemented,       // kRefused
    Code::kResourceExhausted,   // kNoDescriptors
    Code::kDeadlineExceeded,    // kNotYet
};

Code CodeOf(Outcome outcome) {
  const auto index = static_cast<size_t>(outcome);
  return index < std::size(kCodes) ? kCodes[index] : Code::kUnknown;
}

}  // namespace

Connection& Connection::operator=(Connection&& other) noexcept {
  Disconnect();
  socket_ = std::move(other.socket_);
  admitted_ = other.admitted_;
  return *this;
}

void Connection::Disconnect() {
  if (!socket_ || !admitted_) return;
  (void)::shutdown(socket_.get(), SHUT_WR);
  const Deadline deadline = Deadline::In(kDisconnectTime);
  for (;;) {
    pollfd end{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&end, 1, deadline.PollTimeout());
    if (ready == 0 || (ready < 0 && errno != EINTR)) return;
    // Drops the rest of an answer that is no longer needed, with its descriptors.
    char first = 0;
    const ssize_t bytes = ::recv(socket_.get(), &first, 1, MSG_DONTWAIT);
    if (bytes == 0 || (bytes < 0 && errno != EINTR && errno != EAGAIN)) return;
  }
}

Result<AgentHeader> PassSocket(process::HostPid pid, UniqueFd socket, uint32_t features,
                               milliseconds timeout) {
  auto send = [&](const NoteStep& note) -> Result<std::string> {
    STASIS_ASSIGN(AgentHeader header, SendSocketWithin(pid, socket.get(), features, note));
    return ToAnswer(header);
  };
  BoundedOptions options;
  options.keep_fds = {socket.get()};
  STASIS_ASSIGN(std::string answer, Annotate(AskBounded(send, Deadline::In(timeout), options),
                                             "finding " + NameOfAgent(pid)));
  return FromAnswer(answer);
}

std::string NameOfAgent(process::HostPid pid) {
  return "the agent in process " + process::ToString(pid);
}

int Milliseconds(milliseconds span) { return int(std::clamp<int64_t>(span.count(), 0, 1 << 30)); }

std::string TextOf(const Reply& reply) {
  std::string out;
  for (size_t i = 0; i < sizeof(reply.text) && reply.text[i] != '\0'; ++i) {
    out += reply.text[i] >= ' ' && reply.text[i] < 127 ? reply.text[i] : '?';
  }
  return out;
}

Status FromReply(const Reply& reply) {
  if (reply.outcome == Outcome::kOk) return {};
  Error error{CodeOf(reply.outcome)};
  error.message = TextOf(reply);
  if (error.message.empty()) error.message = "the agent rejected the request and gave no reason";
  if (reply.outcome == Outcome::kDriver) {
    error.domain = Domain::kCuda;
    error.raw = reply.driver_error;
  }
  return Fail(std::move(error));
}

Error IoError(Io io) {
  switch (io) {
    case Io::kTimeout:
      return {Code::kDeadlineExceeded, Domain::kStasis, 0, "the agent did not answer in time"};
    case Io::kBad:
      return {Code::kUnavailable, Domain::kStasis, 0, "the agent's answer is not valid"};
    case Io::kError:
      return ErrnoError(errno, "use the connection to the agent");
    default:
      return {Code::kUnavailable, Domain::kStasis, kEnded, "the agent closed the connection"};
  }
}

bool WasEnded(const Error& error) {
  return error.code == Code::kUnavailable && error.domain == Domain::kStasis && error.raw == kEnded;
}

}  // namespace stasis::agent_client
