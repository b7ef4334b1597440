#include "gpu_state/ipc_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace stasis::gpu_state {
namespace {

bool Same(const agent_protocol::Uuid& a, const agent_protocol::Uuid& b) {
  return std::memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

uint32_t NamedPeers(const agent_protocol::HelloReply& hello) {
  return std::min(hello.ipc_peer_count, agent_protocol::kMaxIpcPeers);
}

std::string DescribeSharing(const IpcMember& member, const agent_protocol::IpcPeer& peer) {
  const bool theirs = (peer.role & agent_protocol::kIpcOwnsTheirs) != 0;
  return fmt::format("process {} uses GPU memory of process {} (CUDA IPC)",
                     theirs ? member.id.pid.value : peer.pid,
                     theirs ? peer.pid : member.id.pid.value);
}

Status CheckPeer(const std::vector<IpcMember>& members, const IpcMember& member,
                 const agent_protocol::IpcPeer& peer) {
  const bool takes_part = std::any_of(members.begin(), members.end(), [&](const IpcMember& other) {
    return Same(other.hello->ipc_name, peer.name);
  });
  if (!takes_part) {
    return Fail(
        Code::kUnimplemented,
        fmt::format("{}, and process {} does not take part", DescribeSharing(member, peer),
                    peer.pid),
        "name a job or process whose tree contains both, or close the memory in the program");
  }
  if ((peer.role & agent_protocol::kIpcFreedHere) != 0) {
    return Fail(
        Code::kUnimplemented,
        DescribeSharing(member, peer) + ", which its owner has freed, so it could not be restored",
        "close imported memory that the program no longer uses");
  }
  return {};
}

}  // namespace

Status CheckIpcPeers(const std::vector<IpcMember>& members) {
  for (const IpcMember& member : members) {
    if (member.hello->ipc_peer_count > agent_protocol::kMaxIpcPeers) {
      return Fail(Code::kUnimplemented,
                  fmt::format("process {} shares GPU memory (CUDA IPC) with more than {} others",
                              member.id.pid.value, agent_protocol::kMaxIpcPeers));
    }
    for (uint32_t i = 0; i < NamedPeers(*member.hello); ++i) {
      STASIS_TRY(CheckPeer(members, member, member.hello->ipc_peers[i]));
    }
  }
  return {};
}

Status CheckSharesNothing(const IpcMember& member, const std::string& why_left) {
  if (NamedPeers(*member.hello) == 0) return {};
  return Fail(Code::kUnimplemented,
              fmt::format("{}, and only its agent can save shared memory: {}",
                          DescribeSharing(member, member.hello->ipc_peers[0]), why_left),
              "close it in the program first");
}

}  // namespace stasis::gpu_state
