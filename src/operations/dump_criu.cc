// The phases of a dump that CRIU takes part in: criu-start, cpu-dump and describe.
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "checkpoint/describe.h"
#include "checkpoint/teardown.h"
#include "criu/amd_plugin.h"
#include "criu/diagnose.h"
#include "criu/network_lock.h"
#include "gpu_state/gpu_away.h"
#include "operations/dump_run.h"
#include "process/end.h"
#include "process/namespace.h"

namespace stasis::operations {
namespace {

using plan::Phase;
using plan::PhaseScope;
using std::chrono::seconds;

// The descriptor number of the journal lock in CRIU. CRIU holds the lock until it has released the
// program, even if this process dies before that.
constexpr int kCriuLockFd = 20;

constexpr seconds kCriuStart{20};

// Returns how CRIU blocks the packets of a program that shares the network with it: only those of
// the connections that it keeps. Without any it need not, and to end a block of nftables takes
// 25 ms, during which CRIU holds the program. A block of nftables can be removed and made again
// (criu/network_lock.h).
criu::NetworkLock ChooseNetworkLock(const criu::DumpRequest& request) {
  const auto ours = process::ReadNamespace({::getpid()}, "net");
  const auto its = process::ReadNamespace(request.pid, "net");
  if (!ours || !its || *ours != *its) return criu::NetworkLock::kAuto;
  switch (request.options.tcp) {
    case criu::Tcp::kRefuse:
      return criu::NetworkLock::kSkip;
    case criu::Tcp::kKeep:
      return criu::NetworkLock::kNftables;
    default:
      return criu::NetworkLock::kAuto;
  }
}

}  // namespace

// CRIU reads its options and examines the kernel before it stops the program, for up to 25 ms.
Phase DumpRun::CriuStart() {
  return {.name = "criu-start",
          .timeout = kCriuStart,
          .run = [this](PhaseScope& scope) -> Status {
            request_.pid = survey_.target.root.pid;
            request_.images_dir = writer_->cpu_path();
            request_.log_path = LogPath();
            request_.leave_running = dump_.leave_running;
            request_.options = dump_.criu;
            request_.options.plugins = facts_.criu_plugins;
            facts_.stdio.ApplyTo(request_.options);
            if (request_.options.network_lock == criu::NetworkLock::kAuto) {
              request_.options.network_lock = ChooseNetworkLock(request_);
            }
            std::map<int, int> fds = {{kCriuLockFd, session_.journal->lock_fd()}};
            if (streams_) fds.merge(streams_->descriptors());
            STASIS_ASSIGN(criu_,
                          session_.criu->StartDump(facts_.criu_path, request_, facts_.in_own_pidns,
                                                   fds, scope.deadline()));
            if (streams_) streams_->CloseOurEnds();
            return KeepLog(criu_->PrepareDump(request_, scope.deadline()));
          },
          .undo = [this]() -> Status {
            if (criu_) criu_->CancelPrepared();
            criu_.reset();
            return {};
          }};
}

// The phases that prepare for CRIU, before the program is stopped.
Phase DumpRun::BeforeStop() {
  // Another program's CRIU writes to a folder of its own.
  const bool to_store = !commits_late() || dump_.held || session_.cpu_memory_to_store;
  Phase ready = to_store ? CriuStart() : plan::InOrder("cpu-ready", {CpuRoom(), CriuStart()});
  ready.run = [this, run = std::move(ready.run)](PhaseScope& scope) -> Status {
    STASIS_TRY(CheckSpaceBesideFiles());
    return run(scope);
  };
  return ready;
}

// The check before the dump did not know of files with GPU data, which take space until the image
// is complete.
Status DumpRun::CheckSpaceBesideFiles() const {
  if (ignore_memory_ || !shared_.overflows()) return {};
  return Annotate(checks::CheckImageSpace(session_.services, survey_, dump_.store, dump_.full,
                                          shared_.bytes() + stored_.bytes()),
                  "GPU data that does not fit into memory takes disk space beside the image");
}

// CRIU continues after some errors of its plugin, and would end the program.
Status DumpRun::CheckPlugin() const {
  if (facts_.criu_plugins.empty()) return {};
  const auto& all = operation_.device_processes;
  const auto alive =
      std::count_if(all.begin(), all.end(), [](const auto& p) { return process::IsAlive(p.id); });
  return criu::CheckPluginDump(writer_->cpu_path(), LogPath(), static_cast<size_t>(alive));
}

// Runs inside CRIU's post-dump notification. After an error CRIU lets the program run.
Status DumpRun::AnswerPostDump(PhaseScope& scope) {
  STASIS_TRY(CheckPlugin());
  STASIS_TRY(scope.RunNested("describe"));
  STASIS_TRY(FinishStreams());
  if (LeavesNetworkLock()) kept_ = criu::ReadKeptConnections(request_.images_dir);
  // CRIU's files are complete. They are synced when the program runs again.
  if (commits_late()) return {};
  STASIS_TRY(scope.RunNested(kCpuWrite));
  if (has_data()) STASIS_TRY(scope.Await(kDataWrite));
  STASIS_TRY(scope.RunNested(kCommit));
  if (dump_.hand_over == nullptr) return {};
  STASIS_TRY(scope.RunNested(kHandOver));
  STASIS_TRY(scope.RunNested("stop"));
  return scope.RunNested(HandOver::kSwitch);
}

// Called if CRIU failed after the commit. If CRIU had begun to kill the program, or the program was
// moved, kills the remaining processes, and the dump succeeds: the image is complete, and a part of
// a program is useless.
Status DumpRun::FinishHalfEnded(Status dumped) {
  half_ended_ = switched_ || HasBegunToEnd();
  if (!half_ended_) return dumped;
  STASIS_TRY(Annotate(checkpoint::EndAll(living_), "end the program"));
  notes_.push_back("the dump succeeded, but CRIU failed while ending the program: " +
                   dumped.error().ToString());
  half_ended_ = false;
  criu_ended_the_program_ = true;
  return {};
}

Status DumpRun::RunCriu(PhaseScope& scope) {
  if (streams_) STASIS_TRY(StreamError(streams_->Start()));
  Status answered;
  Status dumped = criu_->Dump(
      request_,
      [&](criu::Notification& notification) -> Status {
        if (notification.moment != criu::Moment::kPostDump) return {};
        answered = AnswerPostDump(scope);
        return answered;
      },
      scope.deadline());
  left_running_ = dumped && criu_->left_running();
  criu_ended_the_program_ = dumped && !commits_late() && !left_running_;
  if (!dump_.held) criu_.reset();
  if (!dumped && switched_) return FinishHalfEnded(std::move(dumped));
  // If the notification was answered with an error, return that error, because it caused CRIU's own
  // error.
  STASIS_TRY(std::move(answered));
  // CRIU reports only that a pipe was closed.
  if (!dumped && streams_ && !dumped.error().not_undone) {
    STASIS_TRY(StreamError(streams_->status()));
  }
  dumped = KeepLog(std::move(dumped));
  if (dumped || commits_late() || !writer_->committed()) return dumped;
  return FinishHalfEnded(std::move(dumped));
}

// Returns true if CRIU leaves its block of the connections in this network when it has ended the
// program. A held dump's CRIU is in the network of its container.
bool DumpRun::LeavesNetworkLock() const {
  return request_.options.tcp == criu::Tcp::kKeep && !commits_late() && !dump_.held &&
         request_.options.network_lock != criu::NetworkLock::kAuto;
}

void DumpRun::ReleaseNetworkLock() {
  if (!criu_ended_the_program_ || !kept_) return;
  std::string left = criu::ReleaseAfterDump(*kept_);
  if (!left.empty()) notes_.push_back(std::move(left));
}

// If CRIU was killed after the commit, all processes may still be alive. Then the program runs
// again and must not be ended. CRIU kills the root first: while the root is alive and has no
// pending SIGKILL, no process was killed.
bool DumpRun::HasBegunToEnd() const {
  const process::ProcessId root = survey_.tree.root().id;
  return !process::IsAlive(root) || process::WasKilled(root);
}

// The undo deletes the work folder, so the log that the error names is copied out of it.
Status DumpRun::KeepLog(Status dumped) {
  std::string kept = session_.services.paths.run + "/last-criu-dump.log";
  if (dumped || !criu::CopyLogBounded(LogPath(), kept)) return dumped;
  std::string& hint = dumped.error().hint;
  size_t at = hint.find(LogPath());
  if (at != std::string::npos) hint.replace(at, LogPath().size(), kept);
  return dumped;
}

// Reads the tree again, because children may have started or ended since the survey. CRIU has
// stopped the tree, so the image contains exactly this state.
Phase DumpRun::Describe() {
  return {.name = "describe", .run = [this](PhaseScope& scope) -> Status {
            checks::Survey stopped = survey_;
            STASIS_ASSIGN(stopped.tree, process::ReadTree(survey_.target.root.pid));
            stopped_.clear();
            living_.clear();
            for (const auto& member : stopped.tree.members) {
              stopped_.push_back(member.id);
              if (process::IsAlive(member)) living_.push_back(member.id);
            }
            STASIS_TRY(session_.journal->NoteMembers(living_));
            // The tree is stopped, so credentials can no longer change. If this fails, the partial
            // image is deleted.
            STASIS_TRY(checks::CheckStillOwn(stopped));
            const checkpoint::DumpedProgram program{
                stopped.tree, stopped.target.job, stopped.RecordedProcesses(), dump_.leave_running,
                dump_.criu,   facts_.stdio,       facts_.criu_version,         facts_.gpu_topology};
            STASIS_ASSIGN(manifest_, checkpoint::DescribeProgram(session_.services, program,
                                                                 scope.deadline()));
            return {};
          }};
}

Phase DumpRun::CpuDump() {
  Phase phase{.name = kCpuDump,
              .timeout = dump_.hand_over == nullptr ? seconds(900) : kHandOverTime + seconds(900),
              .run = [this](PhaseScope& scope) -> Status {
                Status dumped = RunCriu(scope);
                // End() also ends data-write, which would otherwise run until its own deadline
                // although the image is not needed any more.
                if (!dumped && !writer_->committed()) image_process_->End();
                STASIS_TRY(std::move(dumped));
                ReleaseNetworkLock();
                scope.SetBytes(!commits_late() ? image_bytes_
                               : streams_      ? streams_->bytes()
                                               : CpuBytesInStore());
                return {};
              },
              .undo = [this] { return ContinueQueues(); },
              .nested = {Describe()}};
  if (!commits_late()) {
    phase.nested.push_back(CpuWrite());
    phase.nested.push_back(Commit());
  }
  if (dump_.hand_over != nullptr) {
    phase.nested.push_back(HandOverPhase());
    phase.nested.push_back(Stop());
    phase.nested.push_back(Switch());
  }
  return phase;
}

}  // namespace stasis::operations
