#include "wire/find.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <algorithm>
#include <string>

#include "base/file.h"

namespace stasis::wire {
namespace {

constexpr std::string_view kLibrary = "/libstasis-agent.so";
// The library's writable data is a few pages; a mapping of another size is not ours.
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

// The id that the process has in the innermost of its pid namespaces.
Result<int32_t> OwnPid(process::HostPid pid) {
  STASIS_ASSIGN(std::string status, ReadFile("/proc/" + std::to_string(pid.value) + "/status"));
  size_t at = status.find("\nNSpid:");
  if (at == status.npos) return pid.value;
  std::string line = status.substr(at + 1, status.find('\n', at + 1) - at - 1);
  return int32_t(atoi(line.c_str() + line.find_last_of("\t ") + 1));
}

}  // namespace

Result<AgentHeader> ReadAgentHeader(process::HostPid pid) {
  STASIS_ASSIGN(std::vector<process::Mapping> mappings, process::ReadMappings(pid));
  for (const process::Mapping& mapping : mappings) {
    if (!IsAgentData(mapping)) continue;
    std::string bytes(mapping.end - mapping.begin, '\0');
    iovec here{bytes.data(), bytes.size()};
    iovec there{reinterpret_cast<void*>(mapping.begin), bytes.size()};
    ssize_t n = process_vm_readv(pid.value, &here, 1, &there, 1, 0);
    if (n < 0) return FailErrno(errno, "read the agent's header");
    bytes.resize(size_t(n));
    AgentHeader header;
    if (!FindIn(bytes, &header)) continue;
    if (header.version != kVersion || header.size != sizeof(AgentHeader)) {
      return Fail(Code::kUnimplemented, "the agent speaks protocol version " +
                                            std::to_string(header.version) + ", this program " +
                                            std::to_string(kVersion));
    }
    STASIS_ASSIGN(int32_t own, OwnPid(pid));
    if (header.door_fd < 0 || header.pid != own) {
      return Fail(Code::kNotFound, "the agent is loaded, but the program has not used a GPU");
    }
    return header;
  }
  return Fail(Code::kNotFound, "no agent in this process");
}

}  // namespace stasis::wire
