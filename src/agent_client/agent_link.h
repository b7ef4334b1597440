// AgentLink is the interface to the agent of one process, and Agents finds agents. AgentClient
// (client.h) implements AgentLink over the agent's socket.
//
// A suspend: Close, ExportAll (keep the descriptors), Release, Commit.
//   From Release on, the caller's descriptors keep the memory alive, and until Commit the agent's
//   do too. The memory is freed when the last of these descriptors is closed. The program must not
//   be dumped before Commit, because the agent's descriptors are files of the GPU.
// A resume: Map (descriptors in the order of the export), Open. An undo before Release: Open. An
// undo after Release: Map with the same descriptors, then Open.
//
// The destructor disconnects; protocol.h says what the agent does then in each state. There is one
// client at a time: a second one gets kAborted.
//
// The answers come from an untrusted process: they are checked, but may still be false. Errors:
// kNotFound (no agent there), kDeadlineExceeded, kFailedPrecondition (wrong state), kAborted
// (busy), kUnimplemented (another version, or refused), kUnavailable (driver or connection),
// kPermissionDenied.
//
// An AgentLink must be used by one thread at a time; Agents is thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "agent_protocol/protocol.h"
#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::agent_client {

struct Export {
  std::vector<agent_protocol::Range> ranges;
  std::vector<UniqueFd> fds;  // one for each range, in the same order
};

class AgentLink {
 public:
  virtual ~AgentLink() = default;

  // The agent's first answer. Status asks for a new answer.
  virtual const agent_protocol::HelloReply& hello() const = 0;
  virtual Result<agent_protocol::HelloReply> Status(std::chrono::milliseconds timeout) = 0;

  // Returns the GPUs that the program sees, by its ordinals, if the agent hides others that the
  // driver could move the program to. Empty if the program sees all GPUs, or if this agent does not
  // hide any. The driver must be running the program, unless the memory is released.
  virtual Result<std::vector<agent_protocol::Uuid>> Visible(std::chrono::milliseconds timeout) = 0;

  // Closes the gate. The program must become quiescent within `timeout`; the answer may take a
  // second longer. With kLower the contexts' stack limits are small between Release and Open, so
  // that the driver has half as much to save (DeviceAccount::floor_bytes).
  enum class Floor { kLower, kKeep };
  virtual stasis::Status Close(std::chrono::milliseconds timeout, Floor floor) = 0;
  // Closes the gate of a program whose work may wait for another program's work. Returns false if
  // the program is not quiescent within `timeout`. Then the gate stays closed (or is still open, if
  // a stream is being captured), and the caller continues with Rest. Requires goes_in_steps().
  virtual Result<bool> CloseInSteps(std::chrono::milliseconds timeout, Floor floor) = 0;
  // After CloseInSteps: lets `calls` more calls of the program through, and then waits again as
  // CloseInSteps does. With 0 calls it only waits longer.
  virtual Result<bool> Rest(uint32_t calls, std::chrono::milliseconds timeout) = 0;
  // Returns true if the agent supports CloseInSteps and Rest. Older agents do not.
  virtual bool goes_in_steps() const = 0;
  // The reason why CloseInSteps or Rest last returned false, as the start of a sentence.
  virtual const std::string& not_yet() const = 0;
  // Exports memory of the running program, which may allocate and free meanwhile: the list may lack
  // new memory, and the descriptors keep freed memory alive. Until the next call of this object, an
  // allocation of the program that finds no GPU memory waits, so close the descriptors before that
  // call. Requires exports_running().
  virtual Result<Export> ExportRunning(std::chrono::milliseconds timeout) = 0;
  // Returns true if the agent supports ExportRunning. Older agents do not.
  virtual bool exports_running() const = 0;
  virtual Result<Export> ExportAll(std::chrono::milliseconds timeout) = 0;
  // Returns the list that ExportAll returns, without descriptors. Map requires this list. Works in
  // every state except kOpen.
  virtual Result<std::vector<agent_protocol::Range>> Describe(
      std::chrono::milliseconds timeout) = 0;
  // With kUntilCommit the agent maps the memory again if this connection ends before Commit; with
  // kNot only the caller's descriptors keep the memory alive.
  enum class Hold { kNot, kUntilCommit };
  virtual stasis::Status Release(Hold hold, std::chrono::milliseconds timeout) = 0;
  virtual stasis::Status Commit(std::chrono::milliseconds timeout) = 0;
  // Between Close and Open: copies imported memory into new memory of the program, one range at a
  // time, so the GPU needs room for one more range. After an error, the remaining ranges are still
  // imported memory.
  virtual stasis::Status Own(std::chrono::milliseconds timeout) = 0;
  // Maps the memory. `ranges` must be as ExportAll returned them; the caller keeps the descriptors.
  virtual stasis::Status Map(const std::vector<agent_protocol::Range>& ranges,
                             const std::vector<int>& fds, std::chrono::milliseconds timeout) = 0;
  // Maps again the memory of other processes that the program had open. Their agents must have
  // mapped it, and should not have opened their gates yet, because a running program may free the
  // memory.
  virtual stasis::Status Rejoin(std::chrono::milliseconds timeout) = 0;
  // Opens the gate. Returns kUnavailable, with the gate closed, if a stack limit could not be
  // restored or another process's memory could not be mapped; Open may be called again when memory
  // is available.
  virtual stasis::Status Open(std::chrono::milliseconds timeout) = 0;
};

class Agents {
 public:
  virtual ~Agents() = default;
  // Finds the agent in the process and connects. Also returns kNotFound if the program has not used
  // a GPU yet. Returns kAborted if the agent already has a client.
  virtual Result<std::unique_ptr<AgentLink>> Connect(process::HostPid pid,
                                                     std::chrono::milliseconds timeout) = 0;
  // Reads the agent's header without connecting; see find.h.
  virtual Result<agent_protocol::AgentHeader> ReadHeader(process::HostPid pid) = 0;
};

// Returns true if an agent's error says that the driver ran out of GPU memory.
bool IsOutOfMemory(const Error& error);

// The agents inside the processes of this machine.
Agents& AgentsInProcesses();

}  // namespace stasis::agent_client
