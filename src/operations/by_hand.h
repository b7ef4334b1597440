// The driver's own steps on one process, one at a time, for whoever builds on them: `stasis gpu`
// and the `cuda-checkpoint` drop-in. Each refuses what would lose the program: a step beside an
// operation of ours, on what Stasis has suspended, or on memory that the driver alone could not
// restore.
//
// A program may be stopped while it is asked about (CRIU holds it), so nothing here but Own() waits
// for its agent: the rest is read in its header.
#pragma once

#include "agent_protocol/protocol.h"
#include "base/deadline.h"
#include "base/paths.h"
#include "device/device_control.h"

namespace stasis::operations {

class ByHand {
 public:
  // kNotFound: no such process. kUnimplemented: it does not use a GPU. kAborted: an operation of
  // ours is under way on it.
  static Result<ByHand> Open(const Paths& paths, device::DeviceControl& device,
                             process::HostPid pid);

  const process::ProcessId& id() const { return id_; }

  // Stasis has suspended it. Only a resume brings it back, on whichever path it went.
  Result<bool> IsSuspended() const;
  // Its GPU memory is with Stasis, neither on the GPU nor in the program.
  Result<bool> IsMemoryAway() const;

  // Running to locked. With `own`, memory that came back by an earlier resume is made the program's
  // own before (Own).
  enum class Memory { kAsItIs, kOwn };
  Status Lock(Memory memory, const Deadline& deadline) const;
  // Locked to checkpointed, all of it in the program's own memory.
  Status Checkpoint(const Deadline& deadline) const;
  // Checkpointed to locked, and locked to running.
  Status Restore(const device::GpuMap& map, const Deadline& deadline) const;
  Status Unlock(const Deadline& deadline) const;
  // Running to checkpointed with kOwn, undone when the second half fails; or checkpointed to
  // running.
  Status Toggle(const device::GpuMap& map, const Deadline& deadline) const;

  // Memory that came back by an earlier resume is an import, with which the driver's checkpoint
  // succeeds and its restore does not. The agent copies it into memory of the program's own, at the
  // same addresses; the program stands still meanwhile. kResourceExhausted or kUnavailable where
  // the GPU has no room for one more of the largest piece. Nothing to do without an agent. Refuses
  // memory that is shared with another process, which the driver could not restore either.
  Status Own(const Deadline& deadline) const;
  Status RefuseShared(const agent_protocol::HelloReply& hello) const;

 private:
  ByHand(const Paths& paths, device::DeviceControl& device, process::ProcessId id)
      : paths_(&paths), device_(&device), id_(id) {}
  Status RefuseSuspended() const;
  Status Suspend(const Deadline& deadline) const;

  const Paths* paths_;
  device::DeviceControl* device_;
  process::ProcessId id_;
};

}  // namespace stasis::operations
