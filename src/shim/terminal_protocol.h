// What a shim and those who are attached to its job's terminal say to each other: over a unix
// socket of SOCK_SEQPACKET in the job's folder, one header and what follows it a packet.
//
//   client -> shim   kHello     value: a window's size, or 0; flags: kWantsInput. The first packet.
//                    kInput     what was typed. Of one that has not the input it is dropped
//                    kSize      value: its window's size
//   shim -> client   kRefused   value: a Refusal. The last packet
//                    kWelcome   what comes from here on is output, the last of what was there first
//                    kOutput    what the program wrote, as it wrote it
//                    kSkipped   value: so many bytes were left out here: the client was too slow
//                    kHolder    value: 1: the input is this client's now, 0: another's
//                    end of file    the job has ended, and its end is written down
//
// Of several clients who want the input, the one that came last has it; when it goes, it is that of
// the one before. The window's size is that of the one who has the input.
//
// A shim outlives upgrades, so its clients may be of another version: raise kTerminalVersion with
// any change here. Numbers are of the machine's own byte order.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace stasis::shim {

inline constexpr uint32_t kTerminalVersion = 1;
// In the job's folder: there while a job with a terminal of its own can be attached to.
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
  kVersion = 1,   // the header has the shim's
  kStranger = 2,  // neither root nor who runs the shim
  kTooMany = 3,   // kMostClients are attached
};

inline constexpr uint16_t kWantsInput = 1;

struct TerminalHeader {
  uint32_t version = kTerminalVersion;
  TerminalKind kind{};
  uint16_t flags = 0;
  uint64_t value = 0;
};
static_assert(sizeof(TerminalHeader) == 16);

inline constexpr size_t kMostPayload = 16u << 10;  // bytes behind the header
inline constexpr size_t kMostClients = 16;

// In characters; 0 where nobody knows.
struct WindowSize {
  uint16_t rows = 0;
  uint16_t columns = 0;
  bool operator==(const WindowSize&) const = default;
};
// Takes a packet without waiting: its size, also where that is more than `size`; 0 at the end; else
// -1 with errno.
inline ssize_t ReceivePacket(int socket, void* packet, size_t size) {
  ssize_t got;
  // ECONNRESET: the other side went without reading all that we said. What it said before that is
  // still to be read.
  do {
    got = ::recv(socket, packet, size, MSG_DONTWAIT | MSG_TRUNC);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  return got;
}

inline uint64_t Encode(WindowSize size) { return uint64_t{size.rows} << 16 | size.columns; }
inline WindowSize DecodeWindowSize(uint64_t value) {
  return {static_cast<uint16_t>(value >> 16), static_cast<uint16_t>(value)};
}

}  // namespace stasis::shim
