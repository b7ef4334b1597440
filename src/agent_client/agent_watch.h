// Watches the agents of programs that share GPUs: what each program waits for, and whether it uses
// its GPUs. A watch is a connection beside that of a client (agent_link.h); there is one watch of a
// process at a time.
//
// CRIU cannot dump a program while a watch is connected, because its socket belongs to the network
// namespace of this process.
//
// The answers come from an untrusted process: they are checked, but may still be false. Errors of
// Connect: kNotFound (no agent there), kUnimplemented (an agent of an older version),
// kDeadlineExceeded, kAborted (another watch is connected), kUnavailable (connection).
//
// An AgentWatch must be used by one thread at a time; AgentWatches is thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "agent_protocol/protocol.h"
#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::agent_client {

// What a program waits for.
struct AgentWants {
  // A thread waits at the closed gate of the program, whose memory is away.
  bool thread_at_gate = false;
  // An allocation failed for lack of GPU memory, and waits for an answer.
  struct Allocation {
    uint64_t number = 0;         // identifies it in the answer; a number is not used again
    uint64_t bytes = 0;          // the size that the driver could not allocate
    agent_protocol::Uuid gpu{};  // gpu_state::UuidOf converts it
    // How often it was tried again after an answer, and failed: more room is needed than `bytes`,
    // or another program has taken it.
    uint32_t attempts = 0;
  };
  // The first one that waits, if there are several. When it has been answered, the next follows.
  std::optional<Allocation> allocation;
};

// Whether a program uses its GPUs.
struct AgentUse {
  using Clock = std::chrono::steady_clock;

  uint64_t calls = 0;    // of GPU functions so far; only the difference of two values counts
  bool in_call = false;  // a thread is in a GPU function, for example one that waits for work
  Clock::time_point answered{};  // when this answer arrived
  // The last use that the answers show: the last time at which `calls` had changed since the answer
  // before, or `in_call` was set. It lies at most one interval between two answers too late.
  Clock::time_point last_use{};
};

class AgentWatch {
 public:
  // The destructor disconnects, and waits for at most 2 s until the agent has closed its end too.
  // Allocations that wait then fail, unless WillReturn was called.
  virtual ~AgentWatch() = default;

  // Is readable (POLLIN) when Receive has something to do, also after Connect.
  virtual int fd() const = 0;
  // Reads what has arrived and does not block. Returns what the program wants if that has changed;
  // the first call returns what it wanted when the watch connected. After an error (the program has
  // ended, or sent something invalid) the watch is of no more use.
  virtual Result<std::optional<AgentWants>> Receive() = 0;
  // Lets an allocation be tried again, or fail as it would without Stasis. If it fails again for
  // lack of memory, it waits again under a new number. A number that no longer waits is ignored.
  // Does not block.
  virtual Status Answer(uint64_t number, bool try_again) = 0;
  // The last answer about the use of the GPUs that Receive has read. All is zero before the first.
  virtual const AgentUse& use() const = 0;
  // Asks for a new answer. Does nothing if the last request was not answered yet. Does not block.
  virtual Status AskUse() = 0;
  // Call this before a disconnection after which another watch will connect: allocations wait for
  // it, up to their longest wait. Does not block.
  virtual Status WillReturn() = 0;
};

class AgentWatches {
 public:
  virtual ~AgentWatches() = default;
  // Finds the agent in the process and connects.
  virtual Result<std::unique_ptr<AgentWatch>> Connect(process::HostPid pid,
                                                      std::chrono::milliseconds timeout) = 0;
};

// The second half of Connect, after kWatch was sent and the socket was passed to the agent. `who`
// names the agent in errors.
Result<std::unique_ptr<AgentWatch>> GreetWatch(UniqueFd socket, std::string who,
                                               std::chrono::milliseconds timeout);

// Makes watches of the agents inside the processes of this machine. An allocation that has waited
// for `longest_wait` fails even if it gets no answer. One that would leave less than `spare_bytes`
// of a GPU free waits too, see WatchRequest.
std::unique_ptr<AgentWatches> WatchesOfProcesses(std::chrono::milliseconds longest_wait,
                                                 uint64_t spare_bytes = 0);

}  // namespace stasis::agent_client
