#include "criu/tcp_sockets.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "criu/sock_diag.h"

namespace stasis::criu {
namespace {

struct Request {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

Request MakeRequest(uint16_t type, uint16_t flags, int family) {
  Request request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  request.body.sdiag_family = static_cast<uint8_t>(family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0u;
  return request;
}

// Calls `take` for each socket of the answer. Returns the kernel's errno, or 0.
Result<int> Ask(int fd, const Request& request,
                const std::function<void(const inet_diag_msg&)>& take) {
  return AskSockDiag(fd, &request, sizeof request, [&](const nlmsghdr* header) {
    if (header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) return;
    take(*static_cast<inet_diag_msg*>(NLMSG_DATA(header)));
  });
}

TcpSocket Parse(const inet_diag_msg& message) {
  TcpSocket socket;
  socket.family = message.idiag_family;
  socket.state = message.idiag_state;
  socket.address = ToTcpAddress(message.idiag_family, message.id.idiag_src);
  socket.inode = message.idiag_inode;
  socket.expires = std::chrono::milliseconds(message.idiag_expires);
  socket.id = message.id;
  return socket;
}

}  // namespace

TcpAddress ToTcpAddress(int family, const uint32_t* words) {
  TcpAddress address{};
  if (family == AF_INET6) {
    std::memcpy(address.data(), words, address.size());
  } else if (words[0] != 0) {
    address[10] = address[11] = 0xff;
    std::memcpy(address.data() + 12, words, sizeof *words);
  }
  return address;
}

bool TcpSocket::closed() const {
  if (inode != 0) return false;
  switch (state) {
    case TCP_FIN_WAIT1:
    case TCP_FIN_WAIT2:
    case TCP_CLOSING:
    case TCP_LAST_ACK:
    case TCP_TIME_WAIT:
      return true;
    default:
      return false;  // still in the listener's accept queue
  }
}

bool TcpSocket::only_remembered() const {
  return closed() && (state == TCP_TIME_WAIT || state == TCP_FIN_WAIT2);
}

uint64_t TcpSocket::cookie() const {
  return uint64_t{id.idiag_cookie[1]} << 32 | id.idiag_cookie[0];
}

Result<TcpSockets> TcpSockets::Open() {
  STASIS_ASSIGN(UniqueFd fd, OpenSockDiag());
  return TcpSockets(std::move(fd));
}

Result<std::vector<TcpSocket>> TcpSockets::WithLocalPort(uint16_t port) {
  std::vector<TcpSocket> sockets;
  for (int family : {AF_INET, AF_INET6}) {
    Request request = MakeRequest(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family);
    request.body.id.idiag_sport = htons(port);
    STASIS_ASSIGN(int error, Ask(fd_.get(), request, [&](const inet_diag_msg& message) {
                    if (message.id.idiag_sport == htons(port)) sockets.push_back(Parse(message));
                  }));
    // A kernel without IPv6 has no IPv6 sockets.
    if (error != 0 && family == AF_INET) {
      return FailErrno(error, "list TCP sockets through sock_diag");
    }
  }
  return sockets;
}

Status TcpSockets::Destroy(const TcpSocket& socket) {
  Request request = MakeRequest(SOCK_DESTROY, NLM_F_ACK, socket.family);
  request.body.id = socket.id;
  STASIS_ASSIGN(int error, Ask(fd_.get(), request, [](const inet_diag_msg&) {}));
  if (error == 0 || error == ENOENT || error == ESTALE) return {};
  if (error == EOPNOTSUPP || error == EINVAL) {
    return Fail(Code::kUnimplemented, Domain::kErrno, error,
                "this kernel cannot drop closed connections");
  }
  return FailErrno(error, "drop a closed connection");
}

}  // namespace stasis::criu
