// Messages over a pair of descriptors, for example the input and output of a command that ssh runs
// on another host.
//
// At the start both sides send a greeting:
//
//   0   8  magic
//   8   4  version of the protocol
//
// After that each message is a frame:
//
//   0   2  type, defined by the users of the channel
//   2   2  flags, 0
//   4   4  length of the header, at most kMaxHeaderBytes
//   8   8  length of the payload, at most kMaxPayloadBytes
//  16      header, then payload
//
// Numbers are little endian.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "base/stop_when_readable.h"
#include "objects/object_store.h"

namespace stasis::migration {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint32_t kMaxHeaderBytes = 1u << 20;
inline constexpr uint64_t kMaxPayloadBytes = 128ull << 20;
// Payloads are read in steps of this size, so that memory is allocated only as bytes arrive.
inline constexpr uint64_t kStepBytes = 4ull << 20;

// A message to send. Its memory must not change during Send().
struct FrameView {
  uint16_t type = 0;
  std::string_view header;
  std::span<const std::string_view> payload;  // the pieces of one payload
};

// A received message, whose payload has not been read yet.
struct Frame {
  uint16_t type = 0;
  std::string header;
  uint64_t payload_bytes = 0;
};

// Limits of the next message. Longer ones break the channel.
struct Limits {
  uint32_t header_bytes = kMaxHeaderBytes;
  uint64_t payload_bytes = kMaxPayloadBytes;
};

// Calls end at their deadline (kDeadlineExceeded) and when a stop is requested (kCancelled). If the
// other side closes its end, they return kUnavailable.
//
// A call that fails within a message breaks the channel, because the start of the next message is
// then unknown. All later calls return the same error with the code kUnavailable.
//
// Not thread-safe: one call at a time. The process must ignore SIGPIPE if `output` is a pipe.
class Channel {
 public:
  // Takes ownership of the descriptors: pipes, or sockets, which may be duplicates of one socket.
  // Makes them non-blocking. Sends the greeting and waits for that of the other side. Returns
  // kFailedPrecondition if the other side sends something else.
  static Result<std::unique_ptr<Channel>> Open(UniqueFd input, UniqueFd output,
                                               const objects::CallOptions& call);

  // Returns kOutOfRange, and sends nothing, if the message is too long. If the call ends before
  // anything was sent, the channel stays usable.
  Status Send(const FrameView& frame, const objects::CallOptions& call);

  // Waits for the next message and reads all of it but its payload. Discards the unread rest of the
  // previous message's payload. If the call ends before any byte of the message has arrived, the
  // channel stays usable.
  Result<Frame> Receive(const Limits& limits, const objects::CallOptions& call);

  // Returns how many bytes of the received payload have not been read yet.
  uint64_t payload_left() const { return payload_left_; }
  // Fills `to`, of at most payload_left() bytes, with the next bytes of the payload.
  Status ReadPayload(std::span<char> to, const objects::CallOptions& call);
  // Returns the rest of the payload.
  Result<std::string> ReadPayload(const objects::CallOptions& call);

  // Returns an object that requests a stop when the other side closes its end. It reads nothing
  // from the channel, which must outlive it. Safe to use during calls of the channel.
  Result<std::unique_ptr<StopWhenReadable>> StopWhenClosed() const {
    return StopWhenReadable::StartForClose(input_.get());
  }

  // Makes all later calls fail. Used when the two sides no longer agree about what comes next.
  void Break(const Error& cause);

 private:
  class Call;

  Channel(UniqueFd input, UniqueFd output) : input_(std::move(input)), output_(std::move(output)) {}
  Status Greet(const objects::CallOptions& call);
  Error NotAGreeting(std::string text);
  Status WriteAll(std::span<std::string_view> pieces, Call& call);
  Result<size_t> WriteSome(std::span<const std::string_view> pieces, Call& call);
  Status ReadAll(std::span<char> to, bool in_message, Call& call);
  Result<size_t> ReadSome(std::span<char> to, Call& call);
  Error Failed(Error error, bool in_message);

  const UniqueFd input_, output_;
  UniqueFd wake_;  // an eventfd that is written to when a stop is requested
  bool output_is_socket_ = false;
  uint64_t payload_left_ = 0;
  std::optional<Error> broken_;
};

}  // namespace stasis::migration
