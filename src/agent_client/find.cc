#include "agent_client/find.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "agent_protocol/packet.h"
#include "base/fd.h"
#include "process/namespace.h"

namespace stasis::agent_client {

using namespace agent_protocol;  // NOLINT: the messages

namespace {

constexpr std::string_view kLibrary = "/libstasis-agent.so";
// The library's writable data is a few pages; a larger mapping is not the agent's.
constexpr uint64_t kMostBytes = 1 << 20;

bool IsAgentData(const process::Mapping& mapping) {
  std::string_view path = mapping.path;
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
  size_t slash = path.rfind('/');
  if (slash == path.npos || !path.substr(slash).starts_with(kLibrary)) return false;
  return mapping.perms.starts_with("rw") && mapping.end - mapping.begin <= kMostBytes;
}

// The header lies somewhere in the library's data, at a multiple of its alignment.
bool FindIn(const std::string& bytes, AgentHeader* header) {
  for (size_t at = 0; at + sizeof(AgentHeader) <= bytes.size(); at += alignof(AgentHeader)) {
    if (memcmp(bytes.data() + at, kHeaderMagic, sizeof(kHeaderMagic)) != 0) continue;
    memcpy(header, bytes.data() + at, sizeof(*header));
    return true;
  }
  return false;
}

// glibc 2.34 has no wrapper for this system call.
int PidfdGetfd(int pidfd, int fd) { return int(syscall(438 /* pidfd_getfd */, pidfd, fd, 0)); }

// Returns true for a SOCK_SEQPACKET Unix socket. The program may have replaced the control socket
// by another file, which must not be read or written.
bool IsControlSocket(int fd) {
  auto option = [fd](int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
  };
  return option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == SOCK_SEQPACKET;
}

// Returns the end of the agent's socket pair that clients use.
Result<UniqueFd> GetControlSocket(process::HostPid pid, const AgentHeader& header,
                                  const NoteStep& note) {
  note("get the agent's control socket of process " + process::ToString(pid));
  UniqueFd pidfd(int(syscall(SYS_pidfd_open, pid.value, 0)));
  if (!pidfd) return FailErrno(errno, "open process " + process::ToString(pid));
  UniqueFd control(PidfdGetfd(pidfd.get(), header.control_fd));
  if (!control) {
    if (errno == EBADF) {
      return Fail(Code::kUnavailable, "the program has closed the agent's control socket");
    }
    return FailErrno(errno, "get the agent's control socket");
  }
  if (header.control_mark == 0 || !IsControlSocket(control.get()) ||
      SocketMark(control.get()) != header.control_mark) {
    return Fail(Code::kUnavailable,
                "the program has replaced the agent's control socket by another file");
  }
  return control;
}

}  // namespace

std::string ToAnswer(const AgentHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

Result<AgentHeader> FromAnswer(const std::string& answer) {
  AgentHeader header;
  if (answer.size() != sizeof header) {
    return Fail(Code::kInternal, "the header of the agent has the wrong size");
  }
  memcpy(&header, answer.data(), sizeof header);
  return header;
}

Result<AgentHeader> ReadAgentHeader(process::HostPid pid, const Deadline& deadline) {
  auto read = [pid](const NoteStep& note) -> Result<std::string> {
    STASIS_ASSIGN(AgentHeader header, ReadHeaderWithin(pid, note));
    return ToAnswer(header);
  };
  STASIS_ASSIGN(std::string answer, AskBounded(read, deadline));
  return FromAnswer(answer);
}

Result<AgentHeader> SendSocketWithin(process::HostPid pid, int socket, uint32_t features,
                                     const NoteStep& note) {
  STASIS_ASSIGN(AgentHeader header, ReadHeaderWithin(pid, note));
  if ((header.memory & features) != features) {
    return Fail(Code::kUnimplemented,
                "the program was started with an older version of the agent, which lacks this "
                "feature");
  }
  STASIS_ASSIGN(UniqueFd control, GetControlSocket(pid, header, note));
  switch (SendClientSocket(control.get(), socket)) {
    case Io::kOk:
      return header;
    case Io::kEnd:
      return Fail(Code::kUnavailable, "the agent has closed its control socket");
    default:
      return FailErrno(errno, "send to the agent's control socket");
  }
}

Status ProbeControlSocketWithin(process::HostPid pid, const NoteStep& note) {
  STASIS_ASSIGN(AgentHeader header, ReadHeaderWithin(pid, note));
  STASIS_TRY(GetControlSocket(pid, header, note));
  return {};
}

Result<AgentHeader> ReadHeaderWithin(process::HostPid pid, const NoteStep& note) {
  note("list the mappings of process " + process::ToString(pid));
  STASIS_ASSIGN(std::vector<process::Mapping> mappings, process::ReadMappingsWithin(pid));
  for (const process::Mapping& mapping : mappings) {
    if (!IsAgentData(mapping)) continue;
    note("read the memory of process " + process::ToString(pid));
    std::string bytes(mapping.end - mapping.begin, '\0');
    iovec here{bytes.data(), bytes.size()};
    iovec there{reinterpret_cast<void*>(mapping.begin), bytes.size()};
    ssize_t n = process_vm_readv(pid.value, &here, 1, &there, 1, 0);
    if (n < 0) return FailErrno(errno, "read the agent's header");
    bytes.resize(size_t(n));
    AgentHeader header;
    if (!FindIn(bytes, &header)) continue;
    if (header.version != kVersion || header.size != sizeof(AgentHeader)) {
      return Fail(Code::kUnimplemented, "the agent uses protocol version " +
                                            std::to_string(header.version) +
                                            ", Stasis needs version " + std::to_string(kVersion));
    }
    STASIS_ASSIGN(pid_t own, process::ReadInnerPid(pid));
    if (header.control_fd < 0 || header.pid != own) {
      return Fail(Code::kNotFound, "the agent is loaded, but the program has not used a GPU");
    }
    return header;
  }
  return Fail(Code::kNotFound, "the process runs without the agent");
}

}  // namespace stasis::agent_client
