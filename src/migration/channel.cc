#include "migration/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <iterator>
#include <vector>

#include "base/little_endian.h"
#include "objects/printable.h"

namespace stasis::migration {
namespace {

// The first byte occurs in no text, so that a greeting can be distinguished from the output of a
// login shell.
constexpr std::string_view kMagic = "\x89STSmig\n";
constexpr size_t kGreetingBytes = 12;
constexpr size_t kHeadBytes = 16;
constexpr size_t kMaxPieces = 64;  // of one system call

Error Closed(bool in_message) {
  return Error{Code::kUnavailable, Domain::kStasis, 0,
               std::string("the other side has closed the connection") +
                   (in_message ? " in the middle of a message" : "")};
}

Status MakeNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return FailErrno(errno, "make descriptor " + std::to_string(fd) + " non-blocking");
  }
  return {};
}

bool IsSocket(int fd) {
  struct stat st;
  return ::fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

// Removes the first `bytes` bytes.
void Advance(std::span<std::string_view>& pieces, size_t bytes) {
  while (!pieces.empty() && bytes >= pieces.front().size()) {
    bytes -= pieces.front().size();
    pieces = pieces.subspan(1);
  }
  if (!pieces.empty()) pieces.front().remove_prefix(bytes);
}

Status CheckHead(std::string_view head, const Limits& limits) {
  const auto flags = NumberAt<uint16_t>(head, 2);
  const auto header_bytes = NumberAt<uint32_t>(head, 4);
  const auto payload_bytes = NumberAt<uint64_t>(head, 8);
  if (flags == 0 && header_bytes <= std::min(limits.header_bytes, kMaxHeaderBytes) &&
      payload_bytes <= std::min(limits.payload_bytes, kMaxPayloadBytes)) {
    return {};
  }
  return Fail(Code::kInternal, "the other side sent an invalid message (type " +
                                   std::to_string(NumberAt<uint16_t>(head, 0)) + ", flags " +
                                   std::to_string(flags) + ", " + std::to_string(header_bytes) +
                                   " + " + std::to_string(payload_bytes) + " bytes)");
}

}  // namespace

// Applies the limits of one call to all waits of the channel.
class Channel::Call {
 public:
  Call(const Channel& channel, const objects::CallOptions& options)
      : options_(options),
        reset_{options.stop, channel.wake_.get()},
        stop_(options.stop, Wake{channel.wake_.get()}) {}
  Call(const Call&) = delete;

  Status Check() const {
    if (options_.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
    if (options_.deadline.passed()) {
      return Fail(Code::kDeadlineExceeded, "the deadline has passed");
    }
    return {};
  }
  // May return early; the caller then tries again.
  Status Wait(int fd, short events) const {
    pollfd waits[] = {{fd, events, 0}, {reset_.fd, POLLIN, 0}};
    if (::poll(waits, 2, options_.deadline.PollTimeout()) < 0 && errno != EINTR) {
      return FailErrno(errno, "wait for the other side");
    }
    return {};
  }

 private:
  struct Wake {
    int fd;
    void operator()() const {
      const uint64_t one = 1;
      (void)!::write(fd, &one, sizeof one);
    }
  };
  struct Reset {
    const std::stop_token& stop;
    int fd;
    ~Reset() {
      uint64_t count;
      if (stop.stop_requested()) (void)!::read(fd, &count, sizeof count);
    }
  };

  const objects::CallOptions& options_;
  const Reset reset_;  // destroyed after stop_, whose destructor waits for a running callback
  const std::stop_callback<Wake> stop_;
};

Result<std::unique_ptr<Channel>> Channel::Open(UniqueFd input, UniqueFd output,
                                               const objects::CallOptions& call) {
  std::unique_ptr<Channel> channel(new Channel(std::move(input), std::move(output)));
  channel->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!channel->wake_) return FailErrno(errno, "eventfd");
  STASIS_TRY(MakeNonBlocking(channel->input_.get()));
  STASIS_TRY(MakeNonBlocking(channel->output_.get()));
  channel->output_is_socket_ = IsSocket(channel->output_.get());
  STASIS_TRY(channel->Greet(call));
  return channel;
}

// Both sides send before they read. A greeting fits into the buffer of every pipe, so neither side
// blocks.
Status Channel::Greet(const objects::CallOptions& options) {
  Call call(*this, options);
  std::string greeting(kMagic);
  AppendNumber(greeting, kProtocolVersion);
  std::string_view pieces[] = {greeting};
  STASIS_TRY(WriteAll(pieces, call));
  std::string theirs(kGreetingBytes, '\0');
  // Read one byte first, because other text may be shorter than a greeting.
  STASIS_TRY(ReadAll({theirs.data(), 1}, false, call));
  if (theirs[0] != kMagic[0]) return Fail(NotAGreeting(theirs.substr(0, 1)));
  STASIS_TRY(ReadAll({theirs.data() + 1, kGreetingBytes - 1}, true, call));
  if (!theirs.starts_with(kMagic)) return Fail(NotAGreeting(theirs));
  const auto version = NumberAt<uint32_t>(theirs, kMagic.size());
  if (version == kProtocolVersion) return {};
  return Fail(Code::kFailedPrecondition,
              "the other side uses version " + std::to_string(version) +
                  " of the migration protocol, this one version " +
                  std::to_string(kProtocolVersion),
              "install the same version of Stasis on both hosts");
}

// `text` has the bytes that were read. The message shows them and those that have arrived since.
Error Channel::NotAGreeting(std::string text) {
  const size_t begun = text.size();
  text.resize(begun + 200);
  const ssize_t more = ::read(input_.get(), text.data() + begun, text.size() - begun);
  text.resize(begun + static_cast<size_t>(std::max<ssize_t>(more, 0)));
  return Error{Code::kFailedPrecondition, Domain::kStasis, 0,
               "the other side did not send the greeting of the migration protocol, but \"" +
                   objects::Printable(text) + "\"",
               "a login on the other host must print nothing on its standard output"};
}

Status Channel::Send(const FrameView& frame, const objects::CallOptions& options) {
  if (broken_) return Fail(*broken_);
  uint64_t payload_bytes = 0;
  for (std::string_view piece : frame.payload) payload_bytes += piece.size();
  if (frame.header.size() > kMaxHeaderBytes || payload_bytes > kMaxPayloadBytes) {
    return Fail(Code::kOutOfRange, "a message of " + std::to_string(frame.header.size()) + " + " +
                                       std::to_string(payload_bytes) + " bytes is too long");
  }
  std::string head;
  AppendNumber(head, frame.type);
  AppendNumber(head, uint16_t{0});
  AppendNumber(head, static_cast<uint32_t>(frame.header.size()));
  AppendNumber(head, payload_bytes);
  std::vector<std::string_view> pieces = {head, frame.header};
  pieces.insert(pieces.end(), frame.payload.begin(), frame.payload.end());
  Call call(*this, options);
  return WriteAll(pieces, call);
}

Result<Frame> Channel::Receive(const Limits& limits, const objects::CallOptions& options) {
  if (broken_) return Fail(*broken_);
  char skipped[16 << 10];
  while (payload_left_ > 0) {
    STASIS_TRY(ReadPayload({skipped, std::min<uint64_t>(payload_left_, sizeof skipped)}, options));
  }
  Call call(*this, options);
  char bytes[kHeadBytes];
  STASIS_TRY(ReadAll(bytes, false, call));
  const std::string_view head(bytes, sizeof bytes);
  if (auto valid = CheckHead(head, limits); !valid) return Fail(Failed(valid.error(), true));
  Frame frame;
  frame.type = NumberAt<uint16_t>(head, 0);
  frame.header.resize(NumberAt<uint32_t>(head, 4));
  frame.payload_bytes = NumberAt<uint64_t>(head, 8);
  STASIS_TRY(ReadAll(frame.header, true, call));
  payload_left_ = frame.payload_bytes;
  return frame;
}

Status Channel::ReadPayload(std::span<char> to, const objects::CallOptions& options) {
  if (broken_) return Fail(*broken_);
  assert(to.size() <= payload_left_);
  Call call(*this, options);
  STASIS_TRY(ReadAll(to, true, call));
  payload_left_ -= to.size();
  return {};
}

Result<std::string> Channel::ReadPayload(const objects::CallOptions& options) {
  std::string payload;
  while (payload_left_ > 0) {
    const size_t step = std::min(payload_left_, kStepBytes), done = payload.size();
    payload.resize(done + step);
    STASIS_TRY(ReadPayload({payload.data() + done, step}, options));
  }
  return payload;
}

void Channel::Break(const Error& cause) {
  if (broken_) return;
  broken_ = cause;
  if (cause.code == Code::kUnavailable) return;
  broken_->code = Code::kUnavailable;
  broken_->message = "the connection is broken: " + cause.message;
}

// Breaks the channel, except after a cancellation or a deadline between two messages.
Error Channel::Failed(Error error, bool in_message) {
  const bool ended = error.code == Code::kCancelled || error.code == Code::kDeadlineExceeded;
  if (in_message || !ended) Break(error);
  return error;
}

Status Channel::WriteAll(std::span<std::string_view> pieces, Call& call) {
  bool begun = false;
  for (Advance(pieces, 0); !pieces.empty(); begun = true) {
    auto sent = WriteSome(pieces, call);
    if (!sent && sent.error().raw == EPIPE) sent = Fail(Closed(begun));
    if (!sent) return Fail(Failed(std::move(sent).error(), begun));
    Advance(pieces, *sent);
  }
  return {};
}

// Writes at least one byte.
Result<size_t> Channel::WriteSome(std::span<const std::string_view> pieces, Call& call) {
  iovec parts[kMaxPieces];
  const size_t count = std::min(pieces.size(), std::size(parts));
  for (size_t i = 0; i < count; ++i) {
    parts[i] = {const_cast<char*>(pieces[i].data()), pieces[i].size()};
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  for (;;) {
    STASIS_TRY(call.Check());
    const ssize_t sent = output_is_socket_
                             ? ::sendmsg(output_.get(), &message, MSG_NOSIGNAL)
                             : ::writev(output_.get(), parts, static_cast<int>(count));
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN) {
      STASIS_TRY(call.Wait(output_.get(), POLLOUT));
    } else if (errno != EINTR) {
      return FailErrno(errno == ECONNRESET ? EPIPE : errno, "write to the other side");
    }
  }
}

// `in_message` is true if earlier bytes of the same message have been read.
Status Channel::ReadAll(std::span<char> to, bool in_message, Call& call) {
  for (; !to.empty(); in_message = true) {
    auto got = ReadSome(to, call);
    if (got && *got == 0) got = Fail(Closed(in_message));
    if (!got) return Fail(Failed(std::move(got).error(), in_message));
    to = to.subspan(*got);
  }
  return {};
}

// Reads at least one byte. Returns 0 at the end of the input.
Result<size_t> Channel::ReadSome(std::span<char> to, Call& call) {
  for (;;) {
    STASIS_TRY(call.Check());
    const ssize_t got = ::read(input_.get(), to.data(), to.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == ECONNRESET) return 0;  // the other side closed it without reading all bytes
    if (errno == EAGAIN) {
      STASIS_TRY(call.Wait(input_.get(), POLLIN));
    } else if (errno != EINTR) {
      return FailErrno(errno, "read from the other side");
    }
  }
}

}  // namespace stasis::migration
