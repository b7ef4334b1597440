// The protocol between a shim and the clients of its job's terminal, over a SOCK_SEQPACKET unix
// socket in the job's directory. Each packet is one header and its payload.
//
//   client -> shim   kHello     value: size of a window, or 0; flags: kWantsInput. The first packet
//                    kInput     typed input; dropped unless the client has the input
//                    kSize      value: size of the client's window
//   shim -> client   kRefused   value: a Refusal. The last packet
//                    kWelcome   output follows, starting with the most recent output
//                    kOutput    output of the program, unmodified
//                    kSkipped   value: number of bytes dropped here because the client was slow
//                    kHolder    value: 1: this client now has the input, 0: another one has
//                    end-of-file    the job has ended and its end is recorded
//
// If several clients want the input, the latest one has it; when it disconnects, the previous one
// gets it. The terminal has the size of that client's window.
//
// A shim outlives upgrades, so clients may have another version: raise kTerminalVersion with every
// change here. Numbers are in native byte order.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace stasis::shim {

inline constexpr uint32_t kTerminalVersion = 1;
// In the job's directory; exists while clients can attach to the job's terminal.
inline constexpr char kTerminalSocket[] = "terminal";

enum class TerminalKind : uint16_t {
  kHello = 1,
  kInput = 2,
  kSize = 3,
  kRefused = 4,
  kWelcome = 5,
  kOutput = 6,
  kSkipped = 7,
  kHolder = 8,
};

enum class Refusal : uint64_t {
  kVersion = 1,   // the header has the shim's version
  kStranger = 2,  // the client is neither root nor the user of the shim
  kTooMany = 3,   // kMostClients are already attached
};

inline constexpr uint16_t kWantsInput = 1;

struct TerminalHeader {
  uint32_t version = kTerminalVersion;
  TerminalKind kind{};
  uint16_t flags = 0;
  uint64_t value = 0;
};
static_assert(sizeof(TerminalHeader) == 16);

inline constexpr size_t kMostPayload = 16u << 10;  // bytes after the header
inline constexpr size_t kMostClients = 16;

// In characters; 0 if unknown.
struct WindowSize {
  uint16_t rows = 0;
  uint16_t columns = 0;
  bool operator==(const WindowSize&) const = default;
};
// Receives a packet without blocking. Returns its size, which may exceed `size`; 0 at end-of-file;
// -1 with errno otherwise.
inline ssize_t ReceivePacket(int socket, void* packet, size_t size) {
  ssize_t got;
  // ECONNRESET: the peer closed without reading everything sent to it. Packets that it sent before
  // can still be read.
  do {
    got = ::recv(socket, packet, size, MSG_DONTWAIT | MSG_TRUNC);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  return got;
}

// Sends a packet without blocking. Returns false with errno set if it was not sent.
inline bool SendPacket(int socket, const TerminalHeader& header, std::string_view payload) {
  iovec parts[] = {{const_cast<TerminalHeader*>(&header), sizeof header},
                   {const_cast<char*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = std::size(parts);
  return TEMP_FAILURE_RETRY(::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT)) >= 0;
}

inline uint64_t Encode(WindowSize size) { return uint64_t{size.rows} << 16 | size.columns; }
inline WindowSize DecodeWindowSize(uint64_t value) {
  return {static_cast<uint16_t>(value >> 16), static_cast<uint16_t>(value)};
}

}  // namespace stasis::shim
