// The coordinator's side of the agent's door: finds the agent inside a process and talks to it.
//
// A suspend: Find, Close, ExportAll (keep the descriptors), Release, Commit.
//   From Release on, the caller's descriptors keep the memory alive, and until Commit those that
//   the agent holds too; when the last of them is closed, the memory is free. Nothing may be
//   dumped before Commit, for the held descriptors are files of the GPU.
// A resume: Find, Map (descriptors in the order of the export), Open.
// An undo before Release: Open. After it: Map with the same descriptors, then Open.
//
// Destroying the client, or dying, is an Open where that is right and nothing after Release
// (protocol.h). One client at a time: a second one gets kAborted.
//
// What the agent answers is the word of somebody else's process: it is bounded and checked here,
// and may still lie. Errors: kNotFound (no agent there), kDeadlineExceeded, kFailedPrecondition
// (wrong state), kAborted (busy), kUnimplemented (another version, or refused), kUnavailable
// (driver or connection), kPermissionDenied.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"
#include "wire/protocol.h"

namespace stasis::wire {

struct Export {
  std::vector<Range> ranges;
  std::vector<UniqueFd> fds;  // one a range, in the same order
};

class AgentClient {
 public:
  // Finds the agent and connects. kNotFound also when the program has not used a GPU yet; kAborted:
  // it has a client.
  static Result<AgentClient> Find(process::HostPid pid, std::chrono::milliseconds timeout);

  // The second half of Find: `socket` has been handed to the agent, which errors call `who`.
  static Result<AgentClient> Greet(UniqueFd socket, std::string who,
                                   std::chrono::milliseconds timeout);

  AgentClient(AgentClient&&) = default;
  AgentClient& operator=(AgentClient&&) = default;

  // The answer to the greeting, and a new one.
  const HelloReply& hello() const { return hello_; }
  Result<HelloReply> Status(std::chrono::milliseconds timeout);

  // `timeout` is what the program gets to come to rest; the answer may take a second longer.
  // kLower: between Release and Open the contexts' stack limits are small, so that the driver has
  // half as much to carry (DeviceAccount::floor_bytes).
  enum class Floor { kLower, kKeep };
  stasis::Status Close(std::chrono::milliseconds timeout, Floor floor = Floor::kLower);
  // The same for one whose work may wait for another program's: false when it has not come to rest
  // in `timeout`; then the gate stays shut (or is still open, where a stream is being captured),
  // and Rest goes on. Asked of an agent that goes in steps.
  Result<bool> CloseInSteps(std::chrono::milliseconds timeout, Floor floor = Floor::kLower);
  // After it, whatever it said: `calls` more of its calls go through, and then as
  // above. 0 calls wait on.
  Result<bool> Rest(uint32_t calls, std::chrono::milliseconds timeout);
  // Older agents do not.
  bool goes_in_steps() const { return goes_in_steps_; }
  // What keeps it from coming to rest, by the last answer that was false: a sentence without its
  // end.
  const std::string& not_yet() const { return not_yet_; }
  Result<Export> ExportAll(std::chrono::milliseconds timeout);
  // The same list without descriptors, in every state but kOpen: what Map wants back.
  Result<std::vector<Range>> Describe(std::chrono::milliseconds timeout);
  // With kUntilCommit the program gets its memory back by itself when this connection ends before
  // Commit; with kNot the caller's descriptors are all that there is.
  enum class Hold { kNot, kUntilCommit };
  stasis::Status Release(Hold hold, std::chrono::milliseconds timeout);
  stasis::Status Commit(std::chrono::milliseconds timeout);
  // Between Close and Open: the program's memory is its own again, none of it an import. Needs room
  // on the GPU for one more of each piece, one at a time; an error leaves the rest as it was.
  stasis::Status Own(std::chrono::milliseconds timeout);
  // `ranges` as ExportAll gave them; the descriptors stay the caller's, who closes them.
  stasis::Status Map(const std::vector<Range>& ranges, const std::vector<int>& fds,
                     std::chrono::milliseconds timeout);
  // What the program has open of other processes' memory is mapped again. Their agents must have
  // mapped it, and should not have opened: a program that runs may free it. Nothing to do: done.
  stasis::Status Rejoin(std::chrono::milliseconds timeout);
  // kUnavailable: a stack limit could not be set back, or another process's memory not be mapped;
  // the gate stays closed, and Open may be asked again when there is memory.
  stasis::Status Open(std::chrono::milliseconds timeout);

 private:
  AgentClient(UniqueFd socket, std::string who)
      : socket_(std::move(socket)), who_(std::move(who)) {}
  stasis::Status Ask(void* packet, Type type, size_t length, const int* fds, uint32_t count,
                     std::chrono::milliseconds timeout);
  stasis::Status AwaitReply(std::chrono::milliseconds timeout);
  Result<bool> AwaitRest(std::chrono::milliseconds timeout);
  Result<HelloReply> AskHello(Type type, std::chrono::milliseconds timeout);
  Result<Export> AskList(Type request, Type answer, std::chrono::milliseconds timeout);
  Result<uint32_t> ReceivePacket(Packet* packet, int* fds, std::chrono::milliseconds timeout);

  UniqueFd socket_;
  std::string who_;  // "the agent in process 4711"
  HelloReply hello_{};
  bool goes_in_steps_ = false;
  bool shut_ = false;  // by CloseInSteps, which wants this floor:
  Floor floor_ = Floor::kLower;
  std::string not_yet_;
};

}  // namespace stasis::wire
