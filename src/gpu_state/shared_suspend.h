// The shared path out: agents give their programs' GPU memory away as descriptors, and movers copy
// it to arenas while the driver checkpoints what is left.
//
//   data-room     movers run, arenas are allocated: all that can be refused is refused here
//   gate-close    no call of the programs reaches the GPU, and what was submitted has ended
//   data-export   we hold a descriptor of every piece of memory
//   data-save     beside data-release, after which only the agents' descriptors and ours hold it,
//   and
//                 the driver's lock and checkpoint
//   data-commit   the arenas are complete and say so; the agents close their descriptors
//   ... the caller commits ...
//   LetGo()       the last descriptors: the GPU's memory is free
//
// With AwayOptions::keep_context that is all: no driver lock, no checkpoint. The agents' gates
// stay closed, and hold every call that would reach the memory; the stack limits stay as they are.
//
// Until LetGo() nothing is lost whatever fails or dies: Return() maps the very same memory again.
// Who is killed before data-commit leaves agents that do so by themselves; who is killed after it
// leaves complete arenas (shared_resume.h, BringDataBack).
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>

#include "gpu_state/away.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/services.h"
#include "gpu_state/shared_lots.h"
#include "gpu_state/shared_members.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

class SharedSuspend {
 public:
  // Finds the agents of those processes that run, and decides; touches nothing.
  // kUnimplemented when a process can neither be carried by us nor be left to the driver.
  static Result<std::unique_ptr<SharedSuspend>> Look(Services& services, const Processes& processes,
                                                     const AwayOptions& options);
  ~SharedSuspend();

  // Nobody takes the shared path.
  bool empty() const { return members_.empty(); }
  // What movers carry: by the agents' word at Look(), exactly from data-export on.
  uint64_t bytes() const;
  uint64_t BytesOf(const process::ProcessId& id) const;
  // Memory of the programs that take part which only the driver could carry, as counted by the
  // agents at Look().
  uint64_t driver_bytes() const { return driver_bytes_; }
  // After data-save.
  Saved saved() const;
  // Sentences: why blocks were not named on the GPU.
  std::vector<std::string> notes() const;
  // Why others do not; sentences.
  const std::vector<std::string>& left_to_driver() const { return left_to_driver_; }
  // After data-save; of the programs that take part.
  std::vector<Lot>& lots() { return lots_; }

  // `driver_bytes`: of host memory, what the driver will need beside the arenas in the control
  // group of the programs, which may be the arenas' too.
  plan::Phase DataRoom(uint64_t driver_bytes);
  plan::Phase GateClose();
  plan::Phase DataExport();
  plan::Phase DataRelease();
  plan::Phase DataSave();
  plan::Phase DataCommit();

  // Every program has its memory again, with what is in it now, and runs on. The driver has been
  // brought back before. May be called at any time and again.
  Status Return();
  // After Return(): what the programs free from here on is free, and movers are not in the way of
  // others. The arenas stay, and are ours.
  void LetGoOfGpu();
  // After the commit. The arenas stay.
  void LetGo();
  // After the commit: the data is not needed any more, for it is in an image or back on its GPU.
  Status DropArenas();

 private:
  using Member = SharedMember;

  SharedSuspend(Services& services, const AwayOptions& options, SharedMembers found)
      : services_(services),
        options_(options),
        members_(std::move(found.members)),
        left_to_driver_(std::move(found.left_to_driver)),
        driver_bytes_(found.driver_bytes),
        lots_(std::move(found.lots)) {}
  // At the same time; the error names its process.
  Status ForEachMember(const std::function<Status(Member&)>& step);
  Result<bool> MayWaitForEachOther() const;
  Status MakeRoom(const Deadline& deadline);
  // false: blocks on that GPU are not named; notes() says why.
  bool PrepareNames(const device::GpuUuid& gpu, const Deadline& deadline);
  Status Save(plan::PhaseScope& scope);
  Status SaveLot(Lot& lot, dataplane::Mover& mover, const Deadline& deadline,
                 const std::function<void(uint64_t)>& progress);
  // Its mover lets go of the memory while other work goes on; until AwaitReleased() it is nobody
  // else's to call.
  void BeginRelease(const device::GpuUuid& gpu, const Deadline& deadline);
  Status AwaitReleased();
  // The steps of Return(); a member that has died, or whose client is gone, needs none.
  Status MapAgain(Member& member);
  Status RejoinOthers(Member& member);
  Status OpenGate(Member& member);
  // `keep_data`: it is sound, and the program has it.
  void Abandon(bool keep_data = false);

  Services& services_;
  const AwayOptions& options_;
  std::vector<Member> members_;
  const std::vector<std::string> left_to_driver_;
  const uint64_t driver_bytes_;
  std::optional<dataplane::ArenaStore> store_;
  std::vector<Lot> lots_;

  std::optional<BlockSecret> secret_;  // absent: blocks are not named
  std::optional<Id128> key_;           // which that is
  mutable std::mutex mutex_;           // guards what follows; a thread for each GPU
  std::map<device::GpuUuid, std::string> why_unnamed_;
  Saved saved_;
  std::vector<std::future<Status>> releasing_;
};

}  // namespace stasis::gpu_state
