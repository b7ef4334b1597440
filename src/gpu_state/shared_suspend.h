// The shared path of a suspend: agents export their programs' GPU memory as descriptors, and movers
// copy it to arenas while the driver saves the rest.
//
//   data-room     starts movers, allocates arenas and makes the last checks while the programs
//                 still run
//   data-precopy  optional: copies to the arenas while the programs run, so that data-save copies
//                 only what changes after it
//   gate-close    no call of the programs reaches the GPU, and submitted work has ended
//   data-export   obtains a descriptor of every piece of memory
//   data-save     copies to the arenas in parallel with data-release and the driver's lock and
//                 checkpoint. After data-release only descriptors of the agents and of this process
//                 hold the memory
//   data-commit   marks the arenas complete; the agents close their descriptors
//   ... the caller commits ...
//   ReleaseAll()  closes the last descriptors, which frees the GPU's memory
//
// With AwayOptions::keep_context the driver's lock and checkpoint are left out. Stack limits stay
// as they are, and the agents' gates stay closed and block every call that could reach the memory.
//
// Nothing is lost by a failure before ReleaseAll(): ReturnMemory() maps the same memory again. If
// this process is killed before data-commit, the agents map the memory themselves; after
// data-commit, the arenas are complete (shared_resume.h, ReturnStoredData).
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>

#include "gpu_state/away.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/precopy.h"
#include "gpu_state/services.h"
#include "gpu_state/shared_members.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

class SharedSuspend {
 public:
  // Finds the agents of the running processes and decides which process takes which path. Touches
  // nothing. Returns kUnimplemented if a process can take neither path.
  static Result<std::unique_ptr<SharedSuspend>> Create(Services& services,
                                                       const Processes& processes,
                                                       const AwayOptions& options);
  ~SharedSuspend();

  // Returns true if no process takes the shared path.
  bool empty() const { return members_.empty(); }
  // The number of bytes that movers carry: estimated by the agents at first, exact after
  // data-export.
  uint64_t bytes() const { return ShardBytes(shards_); }
  uint64_t BytesOf(const process::ProcessId& id) const { return ShardBytes(shards_, id); }
  // Memory of the members that only the driver can carry, as counted by Create().
  uint64_t driver_bytes() const { return driver_bytes_; }
  // Valid after data-save.
  Saved saved() const;
  // Returns sentences that say why blocks were not hashed on the GPU, and why data is in files.
  std::vector<std::string> notes() const;
  // Returns sentences that say why other processes do not take the shared path.
  const std::vector<std::string>& left_to_driver() const { return left_to_driver_; }
  // Valid after data-save.
  std::vector<GpuShard>& shards() { return shards_; }
  // Valid after data-room: returns true if data that does not fit into memory goes through files.
  bool overflows() const { return !overflow_.empty(); }

  // `driver_bytes`: host memory that the driver will need besides the arenas. It is charged to the
  // control group of the programs, to which the arenas may be charged too.
  plan::Phase DataRoom(uint64_t driver_bytes);
  // An error of the copy does not fail the phase, because it only makes the save take longer;
  // notes() reports it. Does nothing for arenas on disk.
  plan::Phase DataPrecopy();
  plan::Phase GateClose();
  // `processes`, whose device_bytes are the driver's share (SubtractShared), must outlive the plan.
  // If one of them has allocated or freed memory since the survey, the phase corrects its share:
  // the survey read the driver's and the agent's figures at different times, and a share that is
  // too large could prevent the resume. Without `processes` the driver is not asked.
  plan::Phase DataExport(std::vector<plan::RecordedProcess>* processes);
  plan::Phase DataRelease();
  plan::Phase DataSave();
  plan::Phase DataCommit();

  // Maps the memory of every program again, with its current content, and lets the program run. The
  // driver's state must have been restored before. May be called at any time and repeatedly.
  Status ReturnMemory();
  // After ReturnMemory(): closes this process's descriptors and stops the movers; otherwise memory
  // that the programs free would stay allocated. The arenas stay locked by this object.
  void ReleaseGpu();
  // After the commit: also unlocks the arenas, which keep their data.
  void ReleaseAll();
  // Call after the commit, when the data is in an image or back on its GPU. Frees the arenas'
  // memory, or keeps it for reuse.
  Status ReturnArenas();

 private:
  using Member = SharedMember;

  SharedSuspend(Services& services, const AwayOptions& options, SharedMembers found)
      : services_(services),
        options_(options),
        members_(std::move(found.members)),
        left_to_driver_(std::move(found.left_to_driver)),
        driver_bytes_(found.driver_bytes),
        shards_(std::move(found.shards)) {}
  // Runs `step` on all members in parallel; the error names its process.
  Status ForEachMember(const std::function<Status(Member&)>& step);
  Result<bool> MayWaitForEachOther() const;
  void CorrectShare(Member& member, plan::RecordedProcess& process);
  Status MakeRoom(uint64_t driver_bytes, const Deadline& deadline);
  // Returns the memory that movers need for arenas on disk.
  uint64_t StagingBytes() const;
  // Returns the memory that the driver and movers with so many bytes of buffers need, of the
  // machine and of this process's control groups.
  dataplane::MemoryRoom OwnNeed(uint64_t driver_bytes, uint64_t staging) const;
  // Checks that the memory which arenas leave suffices.
  Status CheckMemory(uint64_t driver_bytes) const;
  // Returns a sentence that says how much data is in files, and why; empty if none is.
  std::string DescribeOverflow() const;
  // Starts the movers of all GPUs, and attaches one arena to each.
  Status PrepareMovers(const Deadline& deadline);
  // Returns false if blocks on `gpu` are not hashed; notes() says why.
  bool PrepareHashes(const device::GpuUuid& gpu, const Deadline& deadline);
  // Returns true if data can be copied before the gates close: blocks are hashed, all agents can
  // export memory of a running program, and all arenas are in host memory.
  bool CanPrecopy() const;
  Result<std::vector<Precopied>> PrecopyAll(plan::PhaseScope& scope);
  Status EndPrecopy();
  Status RepairAfterPrecopy(const Deadline& deadline);
  Status CloseAllGates(const Deadline& deadline);
  enum class Gates : uint8_t { kOpen, kClosed };
  Status ExportAll(Gates gates, const Deadline& deadline);
  std::vector<int> Descriptors(const GpuShard& shard) const;
  Deadline SaveDeadline(const plan::PhaseScope& scope) const;
  Status Save(plan::PhaseScope& scope);
  Status SaveShard(GpuShard& shard, dataplane::MoverLink& mover, const Deadline& deadline,
                   const std::function<void(uint64_t)>& progress);
  // Starts to release the mover's memory in another thread. Nothing else may use this mover until
  // AwaitReleased().
  void BeginRelease(const device::GpuUuid& gpu, const Deadline& deadline);
  Status AwaitReleased();
  // Keeps or frees the memory of the arenas. `keep_data`: the arenas have the same data as the
  // program.
  void AbandonArenas(bool keep_data = false);

  Services& services_;
  const AwayOptions& options_;
  std::vector<Member> members_;
  const std::vector<std::string> left_to_driver_;
  const uint64_t driver_bytes_;
  std::optional<dataplane::ArenaStore> store_;
  std::vector<GpuShard> shards_;

  std::optional<BlockSecret> secret_;  // absent: blocks are not hashed
  std::optional<Id128> key_;           // the id of its key
  mutable std::mutex mutex_;           // guards all members below; each GPU has a thread
  std::map<device::GpuUuid, std::string> why_unhashed_;
  Saved saved_;
  std::vector<std::future<Status>> releasing_;
  std::string why_not_precopied_;  // written by data-precopy only
  std::string overflow_;           // written by data-room only
};

}  // namespace stasis::gpu_state
