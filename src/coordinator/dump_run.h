// The phases of a dump: image-begin, the GPU state away as in a suspend (gpu_away.h) with a
// tree-check, and gpu-release-check. Then
//   cpu-dump { describe, cpu-write, commit } beside data-write, await-end
// The commit waits for data-write, inside CRIU's post-dump notification: the program is never
// killed before its image is complete, and a refused answer lets it run on. With --leave-running
//   program-back { cpu-dump { describe }, gpu-return, data-free, cpu-write } beside data-write,
//   commit
// The program runs again as soon as CRIU has its CPU state; what is stored, is stored behind that.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "coordinator/image_data.h"
#include "coordinator/journal.h"
#include "coordinator/operations.h"
#include "coordinator/shared_resume.h"
#include "coordinator/shared_suspend.h"
#include "coordinator/survey.h"
#include "criu/stdio.h"
#include "image/manifest.h"
#include "image/writer.h"
#include "store/page_writer.h"

namespace stasis::coordinator {

// One dump on its way, shared by its phases.
class DumpRun {
 public:
  DumpRun(Session& session, Survey survey, Operation operation, const DumpOptions& dump,
          std::string criu_path, std::string criu_version, criu::StdioPlan stdio, std::string name,
          bool in_own_pidns, SharedSuspend& shared, SharedResume& stored)
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

  Plan MakePlan();
  const Operation& operation() const { return operation_; }
  uint64_t image_bytes() const { return image_bytes_; }
  uint64_t shared_bytes() const { return shared_.bytes(); }
  uint64_t added_bytes() const { return added_bytes_; }
  const store::WrittenBlocks& blocks() const { return data_.blocks; }
  const store::WrittenPages& pages() const { return pages_; }
  const std::vector<std::string>& notes() const { return notes_; }  // sentences

 private:
  Phase ImageBegin();
  Phase TreeCheck();
  Phase DataWrite();
  Phase CpuDump();
  Phase Describe();
  Phase CpuWrite();
  Phase Commit();
  Phase GpuReturn();
  Phase DataFree();
  Phase AwaitEnd();
  void AwaitStopped(Status (*wait)(const process::ProcessId&, const Deadline&),
                    const Deadline& deadline);
  std::string Settle();
  Status KeepLog(Status dumped);
  bool HasBegunToEnd() const;

  Status RunCriu(PhaseScope& scope);
  Status CommitImage(PhaseScope& scope);
  Status GiveBackGpu();
  store::BlockWriterOptions HowToWrite(uint32_t uid) const;
  Status DescribeData(image::Manifest& manifest);
  std::vector<Lot*> Lots();
  Status ClearDumped();
  std::string LogPath() const { return work_dir_ + "/criu-dump.log"; }

  Session& session_;
  const Survey survey_;
  const Operation operation_;
  const DumpOptions& dump_;
  const std::string criu_path_;
  const std::string criu_version_;
  const criu::StdioPlan stdio_;
  const std::string name_;
  const bool in_own_pidns_;  // CRIU has to work there
  SharedSuspend& shared_;    // of processes whose memory leaves the GPU now
  SharedResume& stored_;     // of those that were suspended before
  WrittenData data_;
  store::WrittenPages pages_;
  std::unique_ptr<image::ImageWriter> writer_;
  image::Manifest manifest_;                 // after describe
  std::vector<process::ProcessId> stopped_;  // after describe: what CRIU holds, and is to kill
  std::vector<process::ProcessId> living_;   // of them, those that had not ended by themselves
  bool half_ended_ = false;                  // CRIU was lost while it killed them
  std::string work_dir_;
  Stopwatch watch_;
  bool has_gpu_ = false;                 // again, with all its memory
  bool criu_ended_the_program_ = false;  // it may still be giving back its memory
  uint64_t image_bytes_ = 0;
  std::vector<std::string> notes_;
  uint64_t added_bytes_ = 0;  // of them, what no earlier image had
};

// How long a program that runs on stood still: from the first phase that keeps it from the GPU or
// stops it to the end of the one that lets it go. Seconds.
double Pause(const std::vector<PhaseReport>& phases);

}  // namespace stasis::coordinator
