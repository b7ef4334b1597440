// Single steps of the driver on one process, for `stasis gpu` and the `cuda-checkpoint`
// replacement. Each refuses what would lose the program: a step during another operation, on a
// program that Stasis has suspended, or on memory that the driver alone could not restore.
//
// CRIU may have stopped the program, so only Own() waits for its agent. Everything else is read
// from the agent's header.
#pragma once

#include "agent_client/agent_link.h"
#include "base/deadline.h"
#include "base/paths.h"
#include "device/device_control.h"

namespace stasis::operations {

class ByHand {
 public:
  // kNotFound: no such process. kUnimplemented: it does not use a GPU. kAborted: an operation of
  // Stasis works on it. The arguments must outlive the object.
  static Result<ByHand> Open(const Paths& paths, device::DeviceControl& device,
                             process::HostPid pid,
                             agent_client::Agents& agents = agent_client::AgentsInProcesses());

  const process::ProcessId& id() const { return id_; }

  // Stasis has suspended it, on either path. Only a resume brings it back.
  Result<bool> IsSuspended() const;
  // Its GPU memory is in arenas, neither on the GPU nor in the program.
  Result<bool> IsMemoryAway() const;

  // Running to locked. With kOwn, calls Own() first.
  enum class Memory { kAsItIs, kOwn };
  Status Lock(Memory memory, const Deadline& deadline) const;
  // Locked to checkpointed: everything is in the program's own memory.
  Status Checkpoint(const Deadline& deadline) const;
  // Checkpointed to locked, and locked to running.
  Status Restore(const device::GpuMap& map, const Deadline& deadline) const;
  Status Unlock(const Deadline& deadline) const;
  // Running to checkpointed with kOwn, undone if the second step fails; or checkpointed to running.
  Status Toggle(const device::GpuMap& map, const Deadline& deadline) const;

  // Memory that an earlier resume returned is an import: the driver's checkpoint of it succeeds and
  // its restore fails. The agent copies it into new memory of the program, at the same addresses,
  // while the program is stopped. kResourceExhausted or kUnavailable if the GPU has no room for a
  // copy of the largest piece. Does nothing without an agent. Refuses memory that is shared with
  // another process, which the driver could not restore either.
  Status Own(const Deadline& deadline) const;
  Status RefuseShared(const agent_protocol::HelloReply& hello) const;

 private:
  ByHand(const Paths& paths, device::DeviceControl& device, agent_client::Agents& agents,
         process::ProcessId id)
      : paths_(&paths), device_(&device), agents_(&agents), id_(id) {}
  Status RefuseSuspended() const;
  Status Suspend(const Deadline& deadline) const;

  const Paths* paths_;
  device::DeviceControl* device_;
  agent_client::Agents* agents_;
  process::ProcessId id_;
};

}  // namespace stasis::operations
