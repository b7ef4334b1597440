#include "jobs/terminal_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "ipc/socket.h"

namespace stasis::jobs {
namespace {

using shim::Refusal;
using shim::TerminalHeader;
using shim::TerminalKind;

constexpr size_t kInputPortion = 4096;

tl::unexpected<Error> Refused(const TerminalHeader& header) {
  switch (static_cast<Refusal>(header.value)) {
    case Refusal::kStranger:
      return Fail(Code::kPermissionDenied, "its terminal belongs to another user");
    case Refusal::kTooMany:
      return Fail(Code::kResourceExhausted,
                  "its terminal already has " + std::to_string(shim::kMostClients) +
                      " clients, which is the maximum",
                  "detach one of them first");
    default:
      return Fail(
          Code::kUnimplemented,
          "its shim uses version " + std::to_string(header.version) +
              " of the terminal protocol, this Stasis version " +
              std::to_string(shim::kTerminalVersion),
          "attach with the Stasis that started the job; `stasis logs -f` works with any version");
  }
}

tl::unexpected<Error> NoAnswer() {
  return Fail(Code::kUnavailable, "its shim does not answer",
              "`stasis logs` shows its output; `stasis ps` shows whether it has a shim");
}

}  // namespace

Result<TerminalClient::Pair> TerminalClient::MakePair(shim::WindowSize size) {
  STASIS_ASSIGN(ipc::SocketPair ends, ipc::MakeSocketPair());
  Pair pair{TerminalClient(std::move(ends.ours)), std::move(ends.theirs)};
  STASIS_TRY(pair.client.Greet(size, true));
  return pair;
}

Result<TerminalClient> TerminalClient::Connect(const std::string& folder, shim::WindowSize size,
                                               bool wants_input, const Deadline& deadline) {
  STASIS_ASSIGN(UniqueFd opened, Open(folder, O_PATH | O_DIRECTORY));
  STASIS_ASSIGN(const sockaddr_un address, ipc::AddressIn(opened.get(), shim::kTerminalSocket));
  TerminalClient client(UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)));
  if (!client.socket_) return FailErrno(errno, "socket");
  if (::connect(client.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    // The socket is stale: its shim was killed.
    if (errno == ECONNREFUSED) return NoAnswer();
    return FailErrno(errno, "connect to its terminal");
  }
  // A shim that rejects the connection may have closed it already.
  (void)client.Greet(size, wants_input);
  if (!ipc::AwaitReadable(client.fd(), deadline)) return NoAnswer();
  TerminalHeader header;
  if (shim::ReceivePacket(client.fd(), &header, sizeof header) != sizeof header) return NoAnswer();
  if (header.kind == TerminalKind::kWelcome && header.version == shim::kTerminalVersion) {
    return client;
  }
  return Refused(header);
}

Status TerminalClient::Greet(shim::WindowSize size, bool wants_input) {
  ::fcntl(fd(), F_SETFL, O_NONBLOCK);
  TerminalHeader hello{.kind = TerminalKind::kHello, .value = shim::Encode(size)};
  if (wants_input) hello.flags = shim::kWantsInput;
  if (!shim::SendPacket(fd(), hello, {})) return NoAnswer();
  return {};
}

Result<std::optional<TerminalClient::Packet>> TerminalClient::Receive() {
  for (;;) {
    char packet[sizeof(TerminalHeader) + shim::kMostPayload];
    ssize_t size = shim::ReceivePacket(fd(), packet, sizeof packet);
    if (size < 0 && errno == EAGAIN) return std::optional<Packet>();
    TerminalHeader header;
    if (size < static_cast<ssize_t>(sizeof header) || size > static_cast<ssize_t>(sizeof packet)) {
      return NoAnswer();
    }
    std::memcpy(&header, packet, sizeof header);
    if (header.kind == TerminalKind::kRefused) return Refused(header);
    if (header.version != shim::kTerminalVersion) return NoAnswer();
    if (header.kind == TerminalKind::kWelcome) continue;  // after MakePair, which does not await it
    return std::optional<Packet>(
        {header.kind, header.value,
         std::string(packet + sizeof header, static_cast<size_t>(size) - sizeof header)});
  }
}

void TerminalClient::SendInput(std::string_view bytes) {
  input_ += bytes;
  while (!input_.empty()) {
    auto portion = std::string_view(input_).substr(0, kInputPortion);
    if (!shim::SendPacket(fd(), {.kind = TerminalKind::kInput}, portion)) return;
    input_.erase(0, portion.size());
  }
}

void TerminalClient::SendSize(shim::WindowSize size) {
  (void)shim::SendPacket(fd(), {.kind = TerminalKind::kSize, .value = shim::Encode(size)}, {});
}

}  // namespace stasis::jobs
