// The shared path back: movers create the memory anew and fill it from the arenas while the driver
// restores what it carried, and the agents map it at the old addresses.
//
//   load-room    movers run and hold all the memory; the driver's share was held free until now
//   data-load    beside the driver's restore and unlock
//   data-return  the agents have the memory: the programs run on
//
// Until data-return the programs stay suspended whatever fails or dies: the arenas keep the data.
#pragma once

#include <memory>

#include "coordinator/agents.h"
#include "coordinator/gpu_steps.h"
#include "coordinator/services.h"
#include "coordinator/shared_lots.h"

namespace stasis::coordinator {

class SharedResume {
 public:
  // `map` says onto which GPUs.
  SharedResume(Services& services, device::GpuMap map)
      : services_(services), map_(std::move(map)) {}
  ~SharedResume();
  SharedResume(const SharedResume&) = delete;

  // Finds those of the processes whose memory is in arenas, and checks that it is there; touches
  // nothing. To be called once, before the phases run.
  Status Look(const Processes& processes);
  // Ends the connections: no other may be had to an agent meanwhile, and none may be in an image.
  void Disconnect();

  bool empty() const { return members_.empty(); }
  uint64_t bytes() const;
  uint64_t BytesOf(const process::ProcessId& id) const;
  std::vector<Lot>& lots() { return lots_; }

  // `driver_bytes`: what the driver's restore will need on each GPU, asked for when the phase runs;
  // it is free when the phase has ended.
  using DriverBytes = std::function<std::map<device::GpuUuid, uint64_t>()>;
  Phase LoadRoom(DriverBytes driver_bytes);
  Phase DataLoad();
  Phase DataReturn();
  // After that: the arenas are given back.
  Status DropArenas();

  // All of the above at once, for a driver that has restored already.
  Status Now(const Deadline& deadline);

 private:
  struct Member {
    process::ProcessId id;
    std::optional<wire::AgentClient> client;
    std::vector<wire::Range> list;
    std::vector<UniqueFd> fds;  // of the new memory, in the list's order
  };

  Status Consider(const process::ProcessId& id);
  Result<dataplane::Arena> TakeArena(const Lot& lot);
  device::GpuUuid To(const device::GpuUuid& gpu) const;
  Status MakeRoom(const std::map<device::GpuUuid, uint64_t>& driver_bytes,
                  const Deadline& deadline);
  Status Load(const Deadline& deadline, const std::function<void(uint64_t)>& progress);
  Status Return(const Deadline& deadline);
  void LetGo();

  Services& services_;
  const device::GpuMap map_;
  std::vector<Member> members_;
  std::optional<dataplane::ArenaStore> store_;
  std::vector<Lot> lots_;
};

// For recovery, when the driver has been brought back: a program whose agent waits for its memory
// gets it from its arenas, and one whose gate waits for a stack limit is asked to open. Those that
// run, or have no agent, are left alone. What arenas still hold of any of them is given back.
Status BringDataBack(Services& services, const Processes& processes);

// A resume that was cut off reached the program: it has memory again that the driver alone could
// not restore, so the way back is barred and the way is forward.
// An agent that stands in the locked driver cannot say so: its process is unlocked first.
Result<bool> IsBack(Services& services, const Processes& processes);

}  // namespace stasis::coordinator
