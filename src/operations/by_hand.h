// Single steps of the driver on one process, for `stasis gpu` and the `cuda-checkpoint`
// replacement. A step that could lose the program is refused: during another operation, on a
// program that Stasis has suspended, or on memory that the driver alone could not restore.
//
// CRIU may have stopped the program, so only Own() waits for the program's agent. The other
// functions read the agent's header instead.
#pragma once

#include "agent_client/agent_link.h"
#include "base/deadline.h"
#include "base/paths.h"
#include "device/device_control.h"

namespace stasis::operations {

class ByHand {
 public:
  // Returns kNotFound if there is no such process, kUnimplemented if it does not use a GPU, and
  // kAborted if a Stasis operation works on it. The arguments must outlive the object.
  static Result<ByHand> Open(const Paths& paths, device::DeviceControl& device,
                             process::HostPid pid,
                             agent_client::Agents& agents = agent_client::AgentsInProcesses());

  const process::ProcessId& id() const { return id_; }

  // Returns true if Stasis has suspended the process, on either path. Only `stasis resume` can
  // restore its GPU state.
  Result<bool> IsSuspended() const;
  // Returns true if the GPU memory of the process is in arenas, and so neither on the GPU nor in
  // the process.
  Result<bool> IsMemoryAway() const;

  // Changes the state from running to locked. With kOwn, calls Own() first.
  enum class Memory { kAsItIs, kOwn };
  Status Lock(Memory memory, const Deadline& deadline) const;
  // Changes the state from locked to checkpointed: the GPU state is in the program's own memory.
  Status Checkpoint(const Deadline& deadline) const;
  // Change the state from checkpointed to locked, and from locked to running.
  Status Restore(const device::GpuMap& map, const Deadline& deadline) const;
  Status Unlock(const Deadline& deadline) const;
  // Changes the state from checkpointed to running, or from running to checkpointed. The latter
  // calls Own() first, and unlocks the process if its checkpoint fails.
  Status Toggle(const device::GpuMap& map, const Deadline& deadline) const;

  // Makes the agent replace memory that an earlier resume imported with new memory of the program,
  // with the same contents at the same addresses, while the gate is closed. The driver could
  // checkpoint imported memory, but not restore it. Returns kResourceExhausted or kUnavailable if
  // the GPU has no room for a copy of the largest piece. Does nothing without an agent. Refuses
  // memory that is shared with another process, which the driver could not restore either.
  Status Own(const Deadline& deadline) const;

 private:
  ByHand(const Paths& paths, device::DeviceControl& device, agent_client::Agents& agents,
         process::ProcessId id)
      : paths_(&paths), device_(&device), agents_(&agents), id_(id) {}
  Status RefuseShared(const agent_protocol::HelloReply& hello) const;
  Status RefuseSuspended() const;
  Status Suspend(const Deadline& deadline) const;

  const Paths* paths_;
  device::DeviceControl* device_;
  agent_client::Agents* agents_;
  process::ProcessId id_;
};

}  // namespace stasis::operations
