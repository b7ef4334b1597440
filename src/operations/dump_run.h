// The phases of a dump: image-begin, the phases that take the GPU state away (gpu_state/gpu_away.h)
// with a tree-check, and gpu-release-check. criu-start comes before the program is stopped. Then
//   image-writer
//   cpu-dump { describe, cpu-write, commit } in parallel with data-write, await-end
// The commit waits for data-write, inside CRIU's post-dump notification. The program is therefore
// never killed before its image is complete. If the notification is rejected, CRIU lets the program
// run.
//
// With --leave-running
//   cpu-room before the program is stopped, and in place of the last three phases
//   cpu-dump { describe }, gpu-return, data-free, cpu-write, data-write, commit
// The program runs again as soon as CRIU has saved its CPU state; the image is written after that.
// CRIU writes CPU memory to memory of this process (checkpoint/page_streams.h), if there is enough.
//
// For programs of HIP the phases of a suspend with --keep-context take the data away; CRIU's plugin
// saves the rest during cpu-dump.
//
// If the program moves to another host (HandOver)
//   cpu-dump { describe, cpu-write, commit, hand-over, stop, switch } in parallel with data-write,
//   await-end
// `switch` commits. Before `switch`, the program can continue here. Once `switch` has begun, the
// program never runs here again, unless the other host has refused.
//
// If another program drives CRIU (hold.h), a program that is left running may have to wait for the
// commit. Then the phases are those of a dump without --leave-running, and await-end returns the
// GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "checkpoint/image_process.h"
#include "checkpoint/page_streams.h"
#include "checks/before_dump.h"
#include "checks/survey.h"
#include "criu/kept_connections.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/shared_suspend.h"
#include "operations/dump.h"
#include "operations/image_cleanup.h"
#include "operations/image_tasks.h"
#include "plan/journal.h"
#include "store/image_writer.h"
#include "store/manifest.h"
#include "store/page_writer.h"

namespace stasis::operations {

inline constexpr const char* kCpuDump = "cpu-dump";

// The state of one dump, shared by its phases.
class DumpRun {
 public:
  DumpRun(Session& session, checks::Survey survey, plan::Operation operation,
          const DumpOptions& dump, checks::DumpFacts facts, std::string name,
          gpu_state::SharedSuspend& shared, gpu_state::SharedResume& stored, bool ignore_memory)
      : session_(session),
        survey_(std::move(survey)),
        operation_(std::move(operation)),
        dump_(dump),
        facts_(std::move(facts)),
        name_(std::move(name)),
        shared_(shared),
        stored_(stored),
        ignore_memory_(ignore_memory) {}

  plan::Plan MakePlan();
  const plan::Operation& operation() const { return operation_; }
  uint64_t image_bytes() const { return image_bytes_; }
  uint64_t shared_bytes() const { return shared_.bytes(); }
  uint64_t added_bytes() const { return added_bytes_; }
  const store::WrittenUnits& blocks() const { return blocks_; }
  const store::WrittenUnits& pages() const { return pages_; }
  const std::vector<std::string>& notes() const { return notes_; }  // sentences
  // If the store did not answer: sentences which state that the program is as it was before, and
  // name files that may be left in the store. Otherwise empty.
  const std::string& left_in_store() const { return left_in_store_; }

 private:
  static constexpr const char* kHandOver = "hand-over";
  // Sending the first image of a program may take hours. A lost connection is noticed before this
  // time.
  static constexpr std::chrono::seconds kHandOverTime{4 * 3600};

  plan::Phase ImageBegin();
  plan::Phase TreeCheck();
  plan::Phase StartImageProcess();
  plan::Phase DataWrite();
  plan::Phase Commit();
  // Defined in dump_criu.cc:
  plan::Phase CriuStart();
  plan::Phase BeforeStop();
  Status CheckSpaceBesideFiles() const;
  plan::Phase CpuDump();
  plan::Phase Describe();
  Status RunCriu(plan::PhaseScope& scope);
  Status AnswerPostDump(plan::PhaseScope& scope);
  Status CheckPlugin() const;
  bool HasBegunToEnd() const;
  Status FinishHalfEnded(Status dumped);
  Status KeepLog(Status dumped);
  bool LeavesNetworkLock() const;
  void ReleaseNetworkLock();
  // Defined in dump_cpu_memory.cc:
  plan::Phase CpuRoom();
  plan::Phase CpuWrite();
  Status FinishStreams();
  static Status StreamError(Status status);
  // Defined in dump_hand_over.cc:
  plan::Phase HandOverPhase();
  plan::Phase Stop();
  plan::Phase Switch();
  Status SwitchOver(plan::PhaseScope& scope);
  void StopLiving() const;
  std::vector<process::ProcessId> ToContinue() const;
  void ContinueLiving() const;
  Status CheckHeldByCriu() const;

  plan::Phase GpuReturn();
  plan::Phase DataFree();
  plan::Phase AwaitEnd();
  plan::Phase AwaitEndOrReturnGpu();
  void AwaitStopped(Status (*wait)(const process::ProcessId&, const Deadline&),
                    const Deadline& deadline);
  std::string FinishAfterFailure();
  std::string FinishProgram();
  // Returns true if the image is written after the program runs again.
  bool commits_late() const {
    return dump_.leave_running && (!dump_.held || dump_.held->commits_late);
  }
  // Returns true if a held dump writes its image to a store, and a reference to CRIU's folder.
  bool by_reference() const { return dump_.held && dump_.held->folder != operation_.image; }

  Status CommitImage(plan::PhaseScope& scope);
  Status RecordImage();
  void DeleteUnusedImage();
  Status AbortImage();
  uint64_t CpuBytesInStore() const;
  Result<std::string> RunInImageProcess(const char* task, const std::string& request,
                                        plan::PhaseScope& scope);
  Status ContinueQueues();
  Status ReturnGpu();

  // Returns true if GPU data will be written to the image.
  bool has_data() const { return !shared_.shards().empty() || !stored_.shards().empty(); }
  Status ClearDumped();
  Status MarkMoved(std::string_view certainty);  // jobs::kMovedTo or jobs::kPerhapsMovedTo
  std::string LogPath() const { return work_dir_ + "/criu-dump.log"; }

  Session& session_;
  const checks::Survey survey_;
  plan::Operation operation_;
  const DumpOptions& dump_;
  const checks::DumpFacts facts_;
  const std::string name_;
  gpu_state::SharedSuspend& shared_;  // processes whose memory leaves the GPU now
  gpu_state::SharedResume& stored_;   // processes that were suspended before
  const bool ignore_memory_;          // also the room on the disk is not checked
  // After cpu-room, until the image has the CPU memory. Null if CRIU writes it to the store.
  std::unique_ptr<checkpoint::PageStreams> streams_;
  store::WrittenUnits blocks_;
  store::WrittenUnits pages_;
  std::unique_ptr<store::ImageWriter> writer_;
  std::unique_ptr<ImageCleanup> cleanup_;  // set once the image is begun
  bool commit_begun_ = false;
  criu::DumpRequest request_;
  // From criu-start to the end of cpu-dump; if the dump is held, to the end of the run.
  std::unique_ptr<criu::CriuSession> criu_;
  std::optional<Result<criu::KeptConnections>> kept_;  // after describe, if CRIU leaves its lock
  std::unique_ptr<ImageTasks> tasks_;
  std::unique_ptr<checkpoint::ImageProcess> image_process_;
  store::Manifest manifest_;                 // after describe
  std::vector<process::ProcessId> stopped_;  // after describe: CRIU holds and will kill these
  std::vector<process::ProcessId> living_;   // the processes in stopped_ that are not zombies
  bool switched_ = false;                    // the program never runs here again
  bool runs_there_ = false;                  // it is known to run on the other host
  bool half_ended_ = false;                  // CRIU failed after it had begun to kill stopped_
  std::string work_dir_;
  std::string left_in_store_;
  Stopwatch watch_;
  bool has_gpu_ = false;                 // the GPU and all memory were returned
  bool left_running_ = false;            // CRIU has left the program running
  bool criu_ended_the_program_ = false;  // the kernel may still be freeing its memory
  uint64_t image_bytes_ = 0;
  std::vector<std::string> notes_;
  uint64_t added_bytes_ = 0;  // bytes that no earlier image had
};

// Returns how long a program that keeps running was stopped, in seconds: from the first phase that
// blocks it to the end of the last one.
double Pause(const std::vector<plan::PhaseReport>& phases);

}  // namespace stasis::operations
