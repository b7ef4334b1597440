#include "ipc/socket.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

#include "ipc/packet.h"

namespace stasis::ipc {

Result<SocketPair> MakeSocketPair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) {
    return FailErrno(errno, "make a pair of sockets");
  }
  return SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool AwaitReadable(int fd, const Deadline& deadline) {
  pollfd waiting{fd, POLLIN, 0};
  return TEMP_FAILURE_RETRY(::poll(&waiting, 1, deadline.PollTimeout())) > 0;
}

Status SendPacket(int socket, const void* data, size_t size, std::span<const int> fds, int flags) {
  if (fds.size() > kMaxDescriptors) {
    return Fail(Code::kInternal, "too many descriptors for one packet");
  }
  if (SendWithDescriptors(socket, data, size, fds.data(), static_cast<uint32_t>(fds.size()),
                          flags) < 0) {
    return FailErrno(errno, "send");
  }
  return {};
}

Result<Packet> ReceivePacket(int socket, void* data, size_t size) {
  int fds[kMaxDescriptors];
  const ReceivedPacket received =
      ReceiveWithDescriptors(socket, data, size, fds, std::size(fds), 0);
  if (received.size < 0) return FailErrno(errno, "receive");
  Packet packet;
  packet.size = static_cast<size_t>(received.size);
  packet.fds_lost = received.descriptors_lost;
  for (uint32_t i = 0; i < received.count; ++i) packet.fds.emplace_back(fds[i]);
  return packet;
}

Result<sockaddr_un> AddressIn(int folder, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", folder, name);
  if (path.size() >= sizeof address.sun_path) {
    return Fail(Code::kInvalidArgument, "the name of the socket " + name + " is too long");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace stasis::ipc
