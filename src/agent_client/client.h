// The client side of the agent's protocol: finds the agent inside a process and sends requests.
//
// A suspend: Find, Close, ExportAll (keep the descriptors), Release, Commit.
//   From Release on, the caller's descriptors keep the memory alive, and until Commit also the
//   agent's; when the last of them is closed, the memory is free. The program must not be dumped
//   before Commit, since the held descriptors are files of the GPU.
// A resume: Find, Map (descriptors in the order of the export), Open.
// An undo before Release: Open. After it: Map with the same descriptors, then Open.
//
// The destructor, or the death of the client's process, opens the gate before Release and has no
// effect after it (protocol.h). There is one client at a time: a second one gets kAborted.
//
// The agent's answers come from an untrusted process: they are bounded and checked here, and may
// still be wrong. Errors: kNotFound (no agent there), kDeadlineExceeded, kFailedPrecondition (wrong
// state), kAborted (busy), kUnimplemented (another version, or refused), kUnavailable (driver or
// connection), kPermissionDenied.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent_protocol/protocol.h"
#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::agent_client {

struct Export {
  std::vector<agent_protocol::Range> ranges;
  std::vector<UniqueFd> fds;  // one a range, in the same order
};

class AgentClient {
 public:
  // Finds the agent and connects. Returns kNotFound also if the program has not used a GPU yet, and
  // kAborted if the agent has a client.
  static Result<AgentClient> Find(process::HostPid pid, std::chrono::milliseconds timeout);

  // The second half of Find: `socket` has been passed to the agent. Errors name the agent `who`.
  static Result<AgentClient> Greet(UniqueFd socket, std::string who,
                                   std::chrono::milliseconds timeout);

  AgentClient(AgentClient&&) = default;
  AgentClient& operator=(AgentClient&&) = default;

  // The agent's first answer. Status asks for a new one.
  const agent_protocol::HelloReply& hello() const { return hello_; }
  Result<agent_protocol::HelloReply> Status(std::chrono::milliseconds timeout);

  // Closes the gate. `timeout` is the time in which the program must be quiesced; the answer may
  // take a second longer. With kLower the contexts' stack limits are small between Release and
  // Open, so that the driver has half as much to save (DeviceAccount::floor_bytes).
  enum class Floor { kLower, kKeep };
  stasis::Status Close(std::chrono::milliseconds timeout, Floor floor = Floor::kLower);
  // Does the same for a program whose work may wait for another program's work. Returns false if it
  // is not quiesced within `timeout`: then the gate stays shut (or is still open, if a stream is
  // being captured), and Rest continues. Requires goes_in_steps().
  Result<bool> CloseInSteps(std::chrono::milliseconds timeout, Floor floor = Floor::kLower);
  // After CloseInSteps: lets `calls` more calls of the program through, and then does the same.
  // With 0 calls it only waits longer.
  Result<bool> Rest(uint32_t calls, std::chrono::milliseconds timeout);
  // False for older agents.
  bool goes_in_steps() const { return goes_in_steps_; }
  // Why the program was not quiesced at the last false: the start of a sentence.
  const std::string& not_yet() const { return not_yet_; }
  Result<Export> ExportAll(std::chrono::milliseconds timeout);
  // The same list without descriptors, as Map requires it. In every state except kOpen.
  Result<std::vector<agent_protocol::Range>> Describe(std::chrono::milliseconds timeout);
  // With kUntilCommit the agent maps the memory again if this connection ends before Commit; with
  // kNot only the caller's descriptors keep the memory.
  enum class Hold { kNot, kUntilCommit };
  stasis::Status Release(Hold hold, std::chrono::milliseconds timeout);
  stasis::Status Commit(std::chrono::milliseconds timeout);
  // Between Close and Open: copies imported memory into new memory of the program, one range at a
  // time, so the GPU needs room for one more range. An error leaves the rest as it was.
  stasis::Status Own(std::chrono::milliseconds timeout);
  // Maps the memory. `ranges` must be as ExportAll returned them; the caller keeps the descriptors.
  stasis::Status Map(const std::vector<agent_protocol::Range>& ranges, const std::vector<int>& fds,
                     std::chrono::milliseconds timeout);
  // Maps other processes' memory again that the program has open. Their agents must have mapped it,
  // and should not have opened their gates yet: a running program may free it.
  stasis::Status Rejoin(std::chrono::milliseconds timeout);
  // Opens the gate. Returns kUnavailable, with the gate closed, if a stack limit could not be
  // restored or another process's memory could not be mapped; Open may be called again when there
  // is memory.
  stasis::Status Open(std::chrono::milliseconds timeout);

 private:
  AgentClient(UniqueFd socket, std::string who)
      : socket_(std::move(socket)), who_(std::move(who)) {}
  stasis::Status Ask(void* packet, agent_protocol::Type type, size_t length, const int* fds,
                     uint32_t count, std::chrono::milliseconds timeout);
  stasis::Status AwaitReply(std::chrono::milliseconds timeout);
  Result<bool> AwaitRest(std::chrono::milliseconds timeout);
  Result<agent_protocol::HelloReply> AskHello(agent_protocol::Type type,
                                              std::chrono::milliseconds timeout);
  Result<Export> AskList(agent_protocol::Type request, agent_protocol::Type answer,
                         std::chrono::milliseconds timeout);
  Result<uint32_t> ReceivePacket(agent_protocol::Packet* packet, int* fds,
                                 std::chrono::milliseconds timeout);

  UniqueFd socket_;
  std::string who_;  // "the agent in process 4711"
  agent_protocol::HelloReply hello_{};
  bool goes_in_steps_ = false;
  bool shut_ = false;  // by CloseInSteps, which wants this floor:
  Floor floor_ = Floor::kLower;
  std::string not_yet_;
};

}  // namespace stasis::agent_client
