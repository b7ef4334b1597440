// The shared path back: movers create the memory anew and fill it from the arenas while the driver
// restores what it carried, and the agents map it at the old addresses.
//
//   load-room    movers run and hold all the memory, and the driver's share with a ballast
//   data-load    beside the driver's restore and unlock, before which the ballast goes
//   data-return  the agents have the memory: the programs run on
//
// Until data-return the programs stay suspended whatever fails or dies: the arenas keep the data.
//
// Of an image, the processes are not there yet: its lots are known by Expect(), their arenas are
// filled by data-read beside data-load, and Bind() finds the processes later.
#pragma once

#include <memory>

#include "gpu_state/agents.h"
#include "gpu_state/gpu_load.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/services.h"
#include "gpu_state/shared_lots.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

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
  // The same for a restore: what an image holds, without arenas; …
  void Expect(std::vector<Lot> lots);
  // … arenas for all of it, whose owner is a process that started at no time, …
  Status MakeArenas();
  // … and whose they are. They are full; each process wants exactly what is in them.
  struct Returned {
    pid_t image_pid;  // of the lots' keys
    process::ProcessId id;
  };
  Status Bind(const std::vector<Returned>& processes);
  // Whether the arenas are there, or none are needed.
  bool has_arenas() const { return has_arenas_; }
  // Undoes all of that, and of a load: no GPU memory, no arena.
  Status CallOff();
  // Ends the connections: no other may be had to an agent meanwhile, and none may be in an image.
  void Disconnect();

  bool empty() const { return members_.empty(); }
  uint64_t bytes() const;
  uint64_t BytesOf(const process::ProcessId& id) const;
  std::vector<Lot>& lots() { return lots_; }

  // `driver_bytes`: what the driver's restore will need on each GPU, asked for when the phase runs;
  // it is held free until FreeBallast, or, without `keep_ballast`, the end of the phase.
  static constexpr const char* kLoadRoom = "load-room";
  using DriverBytes = std::function<std::map<device::GpuUuid, uint64_t>()>;
  plan::Phase LoadRoom(DriverBytes driver_bytes, bool keep_ballast);
  // For immediately before the driver's restore. `scope`: null when nothing runs beside it.
  Status FreeBallast(plan::PhaseScope* scope, const Deadline& deadline);
  plan::Phase DataLoad();
  plan::Phase DataReturn();
  // After that: the arenas are given back.
  Status DropArenas();

  // All of the above at once, for a driver that has restored already.
  Status Now(const Deadline& deadline);

 private:
  struct Member {
    process::ProcessId id;
    std::optional<agent_client::AgentClient> client;
    std::vector<agent_protocol::Range> list;
  };

  Status Consider(const process::ProcessId& id);
  Result<dataplane::Arena> TakeArena(const Lot& lot);
  device::GpuUuid To(const device::GpuUuid& gpu) const;
  // Runs `step` for the load of each GPU, in parallel.
  Status ForEachLoad(const std::function<Status(const device::GpuUuid&, GpuLoad&)>& step);
  Status StartMovers(const Deadline& deadline);
  Status MakeRoom(const std::map<device::GpuUuid, uint64_t>& driver_bytes,
                  const Deadline& deadline);
  Status Load(plan::PhaseScope* scope, const Deadline& deadline,
              const std::function<void(uint64_t)>& progress);
  Status BindTo(const Returned& process);
  Status Return(const Deadline& deadline);
  void LetGo();

  Services& services_;
  const device::GpuMap map_;
  std::vector<Member> members_;
  std::optional<dataplane::ArenaStore> store_;
  std::vector<Lot> lots_;
  std::map<device::GpuUuid, GpuLoad> loads_;
  std::atomic<bool> has_arenas_{true};
};

// For recovery, when the driver has been brought back: a program whose agent waits for its memory
// gets it from its arenas, and one whose gate waits for a stack limit is asked to open. Those that
// run, or have no agent, are left alone, and so are those that kept their context: they were
// suspended. What arenas still hold of the others is given back.
Status BringDataBack(Services& services, const Processes& processes);

// A resume that was cut off reached the program: it has memory again that the driver alone could
// not restore, so the way back is barred and the way is forward.
// An agent that stands in the locked driver cannot say so: its process is unlocked first.
Result<bool> IsBack(Services& services, const Processes& processes);

}  // namespace stasis::gpu_state
