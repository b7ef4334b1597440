#include "criu/unix_peers.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/thread.h"
#include "criu/sock_diag.h"

namespace stasis::criu {
namespace {

// A socket always belongs to the network namespace of the thread that created it. A separate thread
// enters the other namespace, so that this process stays in its own.
Result<UniqueFd> DiagSocketOf(process::HostPid pid) {
  STASIS_ASSIGN(uint64_t theirs, process::ReadNamespace(pid, "net"));
  STASIS_ASSIGN(uint64_t ours, process::ReadNamespace({::getpid()}, "net"));
  if (theirs == ours) return OpenSockDiag();
  STASIS_ASSIGN(UniqueFd ns, Open("/proc/" + process::ToString(pid) + "/ns/net", O_RDONLY));
  Result<UniqueFd> made;
  auto work = [&] {
    made = ::setns(ns.get(), CLONE_NEWNET) == 0
               ? OpenSockDiag()
               : Result<UniqueFd>(FailErrno(errno, "enter the program's network namespace"));
  };
  STASIS_ASSIGN(Thread thread, Thread::Start(work));
  thread.Join();
  return made;
}

UnixSocket ParseOne(const nlmsghdr* header) {
  auto* message = static_cast<unix_diag_msg*>(NLMSG_DATA(header));
  UnixSocket socket;
  socket.stream = message->udiag_type == SOCK_STREAM || message->udiag_type == SOCK_SEQPACKET;
  auto left = static_cast<int>(header->nlmsg_len - NLMSG_LENGTH(sizeof *message));
  for (auto* attribute = reinterpret_cast<rtattr*>(message + 1); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    const char* data = static_cast<const char*>(RTA_DATA(attribute));
    size_t size = RTA_PAYLOAD(attribute);
    if (attribute->rta_type == UNIX_DIAG_PEER && size >= sizeof(uint32_t)) {
      uint32_t peer;
      std::memcpy(&peer, data, sizeof peer);
      socket.peer = peer;
    } else if (attribute->rta_type == UNIX_DIAG_NAME && size > 0) {
      socket.name.assign(data, size);
      if (socket.name[0] == '\0') {
        socket.name[0] = '@';
      } else {
        // The path includes its terminating zero byte.
        socket.name.resize(std::strlen(socket.name.c_str()));
      }
    }
  }
  return socket;
}

}  // namespace

Result<UnixSockets> UnixSockets::Read(process::HostPid pid) {
  STASIS_ASSIGN(UniqueFd netlink, DiagSocketOf(pid));
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } ask{};
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  ask.request.sdiag_family = AF_UNIX;
  ask.request.udiag_states = ~0u;
  ask.request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_PEER;
  UnixSockets found;
  auto take = [&](const nlmsghdr* header) {
    auto* message = static_cast<unix_diag_msg*>(NLMSG_DATA(header));
    found.sockets_[message->udiag_ino] = ParseOne(header);
  };
  STASIS_ASSIGN(int error, AskSockDiag(netlink.get(), &ask, sizeof ask, take));
  if (error != 0) return FailErrno(error, "list unix sockets through sock_diag");
  return found;
}

const UnixSocket* UnixSockets::Find(uint64_t inode) const {
  auto at = sockets_.find(inode);
  return at == sockets_.end() ? nullptr : &at->second;
}

std::set<uint64_t> UnixSockets::WithName(const std::string& name) const {
  std::set<uint64_t> inodes;
  for (const auto& [inode, socket] : sockets_) {
    if (socket.name == name) inodes.insert(inode);
  }
  return inodes;
}

}  // namespace stasis::criu
