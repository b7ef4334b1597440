// The phases of a dump: image-begin, the GPU state away as in a suspend (gpu_state/gpu_away.h) with
// a tree-check, and gpu-release-check. Then
//   image-writer
//   cpu-dump { describe, cpu-write, commit } beside data-write, await-end
// The commit waits for data-write, inside CRIU's post-dump notification: the program is never
// killed before its image is complete, and a rejected notification lets it run.
//
// With --leave-running
//   program-back { cpu-dump { describe }, gpu-return, data-free, cpu-write } beside data-write
//   commit
// The program runs again as soon as CRIU has saved its CPU state; the image is written after that.
//
// If CRIU is driven by somebody else (hold.h), the phases are those of a dump without
// --leave-running, and await-end also returns the GPU to a program that was let run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "checkpoint/image_process.h"
#include "checkpoint/store_cleaner.h"
#include "checks/survey.h"
#include "criu/stdio.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/shared_suspend.h"
#include "operations/dump.h"
#include "operations/image_tasks.h"
#include "plan/journal.h"
#include "store/image_writer.h"
#include "store/manifest.h"
#include "store/page_writer.h"

namespace stasis::operations {

// The state of one dump, shared by its phases.
class DumpRun {
 public:
  DumpRun(Session& session, checks::Survey survey, plan::Operation operation,
          const DumpOptions& dump, std::string criu_path, std::string criu_version,
          criu::StdioPlan stdio, std::string name, bool in_own_pidns,
          gpu_state::SharedSuspend& shared, gpu_state::SharedResume& stored)
      : session_(session),
        survey_(std::move(survey)),
        operation_(std::move(operation)),
        dump_(dump),
        criu_path_(std::move(criu_path)),
        criu_version_(std::move(criu_version)),
        stdio_(std::move(stdio)),
        name_(std::move(name)),
        in_own_pidns_(in_own_pidns),
        shared_(shared),
        stored_(stored) {}

  plan::Plan MakePlan();
  const plan::Operation& operation() const { return operation_; }
  uint64_t image_bytes() const { return image_bytes_; }
  uint64_t shared_bytes() const { return shared_.bytes(); }
  uint64_t added_bytes() const { return added_bytes_; }
  const store::WrittenUnits& blocks() const { return blocks_; }
  const store::WrittenUnits& pages() const { return pages_; }
  const std::vector<std::string>& notes() const { return notes_; }  // sentences
  // If the store did not answer: says that the program is as it was before, and what may be left in
  // the store. Otherwise empty.
  const std::string& left_in_store() const { return left_in_store_; }

 private:
  plan::Phase ImageBegin();
  plan::Phase TreeCheck();
  plan::Phase StartImageProcess();
  plan::Phase DataWrite();
  plan::Phase CpuDump();
  plan::Phase Describe();
  plan::Phase CpuWrite();
  plan::Phase Commit();
  plan::Phase GpuReturn();
  plan::Phase DataFree();
  plan::Phase AwaitEnd();
  plan::Phase Settle();
  void AwaitStopped(Status (*wait)(const process::ProcessId&, const Deadline&),
                    const Deadline& deadline);
  std::string FinishAfterFailure();
  std::string FinishProgram();
  Status KeepLog(Status dumped);
  bool HasBegunToEnd() const;
  // The image is written when the program runs again.
  bool commits_late() const { return dump_.leave_running && !dump_.held; }
  Status AnswerPostDump(plan::PhaseScope& scope);
  Status FinishHalfEnded(Status dumped);

  Status RunCriu(plan::PhaseScope& scope);
  Status CommitImage(plan::PhaseScope& scope);
  // Returns a sentence about what is left, empty if nothing is.
  std::string RemoveLateFiles();
  Status AbortImage();
  uint64_t CpuBytesInStore() const;
  Result<std::string> RunInImageProcess(const char* task, const std::string& request,
                                        plan::PhaseScope& scope);
  Status ReturnGpu();

  // The image gets GPU data.
  bool has_data() const { return !shared_.shards().empty() || !stored_.shards().empty(); }
  Status ClearDumped();
  std::string LogPath() const { return work_dir_ + "/criu-dump.log"; }

  Session& session_;
  const checks::Survey survey_;
  const plan::Operation operation_;
  const DumpOptions& dump_;
  const std::string criu_path_;
  const std::string criu_version_;
  const criu::StdioPlan stdio_;
  const std::string name_;
  const bool in_own_pidns_;           // CRIU must work in the program's pid namespace
  gpu_state::SharedSuspend& shared_;  // processes whose memory leaves the GPU now
  gpu_state::SharedResume& stored_;   // processes that were suspended before
  store::WrittenUnits blocks_;
  store::WrittenUnits pages_;
  std::unique_ptr<store::ImageWriter> writer_;
  std::unique_ptr<checkpoint::StoreCleaner> cleaner_;  // set once the image is begun
  bool commit_begun_ = false;
  std::unique_ptr<ImageTasks> tasks_;
  std::unique_ptr<checkpoint::ImageProcess> image_process_;
  store::Manifest manifest_;                 // after describe
  std::vector<process::ProcessId> stopped_;  // after describe: CRIU holds and will kill these
  std::vector<process::ProcessId> living_;   // those of them that are no zombies
  bool half_ended_ = false;                  // CRIU died while it killed them
  std::string work_dir_;
  std::string left_in_store_;
  Stopwatch watch_;
  bool has_gpu_ = false;                 // the GPU and all memory were returned
  bool left_running_ = false;            // the driver of CRIU let the program run on
  bool criu_ended_the_program_ = false;  // its memory may still be being freed
  uint64_t image_bytes_ = 0;
  std::vector<std::string> notes_;
  uint64_t added_bytes_ = 0;  // bytes that no earlier image had
};

// Returns the seconds for which a program that keeps running was stopped: from the first phase that
// blocks it to the end of the last one.
double Pause(const std::vector<plan::PhaseReport>& phases);

}  // namespace stasis::operations
