// The shared path of a resume: movers allocate the memory again and fill it from the arenas while
// the driver restores what it carried; then the agents map it at the old addresses.
//
//   load-room    starts movers, which allocate all the memory, and a ballast for the driver's share
//   data-load    copies from the arenas in parallel with the driver's restore and unlock. The
//                ballast is freed before the restore
//   data-return  the agents map the memory and open their gates: the programs run
//
// Until data-return the programs stay suspended whatever fails: the arenas keep the data.
//
// A restore begins with an image instead of processes: ExpectShards() gets its shards, data-read
// fills their arenas in parallel with data-load, and BindProcesses() finds the processes later. If
// the movers can check the memory on the GPU, there are no arenas: data-read only opens the packs,
// and data-load reads them (GpuShard::source).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/block_hash.h"
#include "device/gpu_map.h"
#include "gpu_state/agents.h"
#include "gpu_state/gpu_load.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/services.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

class SharedResume {
 public:
  // `map` gives the GPUs to resume onto.
  SharedResume(Services& services, device::GpuMap map)
      : services_(services), map_(std::move(map)) {}
  ~SharedResume() { ReleaseArenas(); }
  SharedResume(const SharedResume&) = delete;

  // Finds the processes whose memory is in arenas and checks that all of it is there. Touches
  // nothing. Call it once, before the phases run.
  Status FindArenas(const Processes& processes);

  // Returns a placeholder for a process of an image that does not exist yet, as the owner of its
  // arena. Each restoring process has its own placeholders, so that an image can be restored
  // several times at once.
  static process::ProcessId ExpectedProcess(pid_t image_pid);
  // A restore calls the next three functions in this order. ExpectShards sets the shards of the
  // image, which have no arenas yet and belong to expected processes.
  void ExpectShards(std::vector<GpuShard> shards);
  // Lets the movers load the shards from sources if they can hash memory with this secret. Call it
  // before the phases run.
  void PreferSources(const BlockSecret& secret);
  // Bounds the host memory for arenas, or for the rings of a load from sources; 0: no bound. Call
  // it before the phases run.
  void LimitMemory(uint64_t bytes) { arena_limit_bytes_ = bytes; }
  // How the memory is loaded, which load-room finds out.
  enum class Way : uint8_t { kUnknown, kSources, kArenas };
  Way way() const { return way_; }
  // Why the movers cannot load from sources. Valid with kArenas.
  const std::string& why_no_sources() const { return why_no_sources_; }
  // Lets load-room continue: every shard has its source.
  void SetSourcesReady() { has_arenas_ = true; }
  // Allocates arenas for the expected shards. A shard that already has an arena keeps it and its
  // bytes.
  Status AllocateArenas();
  // Assigns the full arenas, or the loaded memory, to the restored processes. The memory of each
  // process must match it.
  struct Returned {
    pid_t image_pid;  // the pid in the shards' keys
    process::ProcessId id;
  };
  Status BindProcesses(const std::vector<Returned>& processes);
  // Returns true if the arenas are allocated, or none are needed. With sources, none are needed.
  bool has_arenas() const { return has_arenas_; }
  // Undoes the three functions above and a load: frees the GPU memory and the arenas.
  Status Discard();
  // Closes the connections to the agents, so that others can connect and no image contains one.
  void Disconnect();

  bool empty() const { return members_.empty(); }
  uint64_t bytes() const { return ShardBytes(shards_); }
  // Returns the bytes of the arenas that the load had to touch and register first.
  uint64_t cold_bytes() const;
  uint64_t BytesOf(const process::ProcessId& id) const { return ShardBytes(shards_, id); }
  std::vector<GpuShard>& shards() { return shards_; }

  // `driver_bytes` gives the GPU memory that the driver's restore will need; it is called when the
  // phase runs. A ballast of that size is held until FreeBallast or, without `keep_ballast`, the
  // end of the phase.
  static constexpr const char* kLoadRoom = "load-room";
  static constexpr const char* kDataLoad = "data-load";
  using DriverBytes = std::function<std::map<device::GpuUuid, uint64_t>()>;
  plan::Phase LoadRoom(DriverBytes driver_bytes, bool keep_ballast);
  // Called immediately before the driver's restore. `scope` is null if no other phase runs at the
  // same time.
  Status FreeBallast(plan::PhaseScope* scope, const Deadline& deadline);
  plan::Phase DataLoad();
  plan::Phase DataReturn();
  // Called after DataReturn: keeps or frees the memory of the arenas.
  Status ReturnArenas();
  // Called after a failure, and by the destructor: unlocks the arenas, which keep their data, so
  // that ReturnStoredData can open them.
  void ReleaseArenas();

  // Does all of the above in one call, after the driver has restored its state.
  Status RunAll(const Deadline& deadline);

 private:
  struct Member {
    process::ProcessId id;
    std::unique_ptr<agent_client::AgentLink> agent;
    std::vector<agent_protocol::Range> list;
  };

  Status AddProcess(const process::ProcessId& id);
  Result<dataplane::Arena> OpenArena(const GpuShard& shard);
  device::GpuUuid TargetOf(const device::GpuUuid& gpu) const { return device::Mapped(map_, gpu); }
  dataplane::MoverLink& MoverFor(const GpuShard& shard);
  // Runs `step` for the load of each GPU, in parallel.
  Status ForEachLoad(const std::function<Status(const device::GpuUuid&, GpuLoad&)>& step);
  Status StartMovers(const Deadline& deadline);
  Status ChooseWay(const Deadline& deadline);
  uint64_t MostRingBytes() const;  // of all GPUs together
  Status MakeRoom(const std::map<device::GpuUuid, uint64_t>& driver_bytes,
                  const Deadline& deadline);
  Status Load(plan::PhaseScope* scope, const Deadline& deadline,
              const std::function<void(uint64_t)>& progress);
  Status BindProcess(const Returned& process);
  Status ReturnMemory(const Deadline& deadline);
  void FreeMemory();
  // Frees the GPU memory that movers hold for a load, and detaches the arenas.
  void ReleaseMovers();

  Services& services_;
  const device::GpuMap map_;
  std::vector<Member> members_;
  std::optional<dataplane::ArenaStore> store_;
  std::vector<GpuShard> shards_;
  std::map<device::GpuUuid, GpuLoad> loads_;
  std::atomic<bool> has_arenas_{true};
  uint64_t arena_limit_bytes_ = 0;
  std::optional<BlockSecret> secret_;  // of the hashes by which memory from sources is checked
  std::string why_no_sources_;         // constant after `way_` is known
  std::atomic<Way> way_{Way::kArenas};
};

// Called by a recovery after the driver's state was restored. Returns the memory in arenas to
// programs whose agents wait for it, and opens gates that wait for a stack limit. Skips programs
// that are running or have no agent, and programs that kept their context, because these were
// suspended before the operation. Also releases arenas with outdated data of programs that have
// their memory.
Status ReturnStoredData(Services& services, const Processes& processes);

// Returns true if an interrupted resume has returned memory to a program. The driver alone could
// not restore that memory, so the resume must be finished instead of undone. An agent inside the
// locked driver cannot answer, so its process is unlocked first.
Result<bool> AnyMemoryReturned(Services& services, const Processes& processes);

}  // namespace stasis::gpu_state
