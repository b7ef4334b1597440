#include "operations/recover.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <utility>

#include "base/bounded.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/cpu_files.h"
#include "checkpoint/teardown.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/suspended.h"
#include "jobs/store.h"
#include "jobs/watch.h"
#include "plan/journal.h"
#include "process/end.h"
#include "process/host_name.h"
#include "process/search.h"
#include "process/tree.h"
#include "store/image_reader.h"

namespace stasis::operations {
namespace {

using gpu_state::Services;
using plan::JournalEntry;
using plan::Operation;

constexpr std::chrono::seconds kRecordEnd{10};
constexpr std::chrono::seconds kStoreAnswer{20};

auto CountAlive(const Operation& operation) {
  return std::count_if(operation.members.begin(), operation.members.end(),
                       [](const auto& id) { return process::IsAlive(id); });
}

bool AnyAlive(const Operation& operation) { return CountAlive(operation) > 0; }

std::string List(const std::vector<process::ProcessId>& ids) {
  std::string list;
  for (const auto& id : ids) list += (list.empty() ? "process " : ", ") + ToString(id.pid);
  return list;
}

// Returns the members that are alive if `alive` is true, and otherwise those that have ended.
std::vector<process::ProcessId> Members(bool alive, const Operation& operation) {
  std::vector<process::ProcessId> found;
  std::copy_if(operation.members.begin(), operation.members.end(), std::back_inserter(found),
               [&](const auto& id) { return process::IsAlive(id) == alive; });
  return found;
}

std::string NameEnded(const std::vector<process::ProcessId>& ended) {
  return fmt::format("{} {} ended since", List(ended), ended.size() == 1 ? "has" : "have");
}

// Describes a program that was returned to its earlier state. If CRIU was killed while it worked on
// a process, this process may have died too.
std::string DescribeProgramState(const Operation& operation) {
  const auto ended = Members(false, operation);
  if (ended.empty()) return "the program is as it was before";
  const std::string text = NameEnded(ended);
  if (ended.front() != operation.members.front()) {
    return text + "; the rest of the program is as it was before";
  }
  return fmt::format("{}, including the first one; the others are as they were before: {}", text,
                     List(Members(true, operation)));
}

// Clears the mark "dumped", which a dump sets before CRIU kills the job. A deleted job has no mark.
Status ClearDumpedMark(const Services& services, const Operation& operation) {
  jobs::Store store(services.paths.jobs());
  if (operation.job.empty() || !PathExists(store.Folder(operation.job))) return {};
  return store.ClearDumped(operation.job);
}

// Returns text about an image that is complete although its dump was not committed: the command
// died between the two commits. Asks with a time limit, because the store may not answer.
std::string NameCompleteImage(const Operation& operation) {
  if (operation.image.empty()) return "";
  auto open = [&](const NoteStep&) -> Result<std::string> {
    return store::ImageReader::Open(operation.image) ? "complete" : "";
  };
  auto answer = AskBounded(open, Deadline::In(kStoreAnswer));
  if (!answer) {
    return fmt::format("; image {} may exist and be complete: {}", operation.image,
                       answer.error().message);
  }
  if (answer->empty()) return "";
  return fmt::format("; the image {} is complete nevertheless", operation.image);
}

// Removes files of the dump from the store. Call this only when the program runs again, because the
// store may answer late.
Result<std::string> SweepStore(const std::string& outcome, const Operation& operation) {
  STASIS_ASSIGN(const std::string left, checkpoint::SweepStoreOf(operation.image));
  return left.empty() ? outcome : outcome + "; " + left;
}

Result<std::string> UndoOnProgram(Services& services, const Operation& operation) {
  STASIS_TRY(gpu_state::ReturnAllToRecordedState(services, operation.device_processes));
  STASIS_TRY(gpu_state::ReturnStoredData(services, operation.device_processes));
  return SweepStore(AnyAlive(operation) ? "undone: " + DescribeProgramState(operation)
                                        : "the program has ended since",
                    operation);
}

Result<std::string> UndoSuspend(Services& services, const Operation& operation) {
  STASIS_ASSIGN(std::string outcome, UndoOnProgram(services, operation));
  for (const auto& p : operation.device_processes) {
    STASIS_TRY(gpu_state::RestoreSuspendRecord(services.paths, p));
  }
  return outcome;
}

// Ends a program that is running on another host, or may be, because it must not run here too.
Result<std::string> EndMovedProgram(const Operation& operation) {
  STASIS_TRY(checkpoint::EndAll(operation.members));
  return SweepStore(
      operation.elsewhere == plan::Elsewhere::kYes
          ? "finished: the program is running on the other host and was ended here"
          : fmt::format("the program was ended here, because it may be running on the other host; "
                        "if it is not running there, restore the image {}, which is complete",
                        operation.image),
      operation);
}

// Continues the processes that the phase `stop` of a dump has stopped.
void ContinueStopped(const Operation& operation) {
  for (const auto& id : operation.stopped) {
    if (process::IsAlive(id)) (void)::kill(id.pid.value, SIGCONT);
  }
}

// Continues the queues that CRIU's plugin has stopped during a dump.
Status ContinueQueues(const Services& services, const Operation& operation) {
  const auto& begun = operation.phases_begun;
  if (std::find(begun.begin(), begun.end(), "cpu-dump") == begun.end()) return {};
  return gpu_state::ContinueAllQueues(services, operation.device_processes);
}

Result<std::string> UndoDump(Services& services, const Operation& operation) {
  if (operation.elsewhere != plan::Elsewhere::kNo) return EndMovedProgram(operation);
  ContinueStopped(operation);
  STASIS_TRY(ContinueQueues(services, operation));
  STASIS_TRY(ClearDumpedMark(services, operation));
  STASIS_ASSIGN(std::string outcome, UndoOnProgram(services, operation));
  return outcome + NameCompleteImage(operation);
}

Result<std::string> FinishSuspend(Services&, const Operation&) {
  return "finished: the program is suspended";
}

Result<std::string> FinishResume(Services& services, const Operation& operation) {
  const gpu_state::Processes running = gpu_state::AsRunning(operation.device_processes);
  STASIS_TRY(gpu_state::ReturnAllToRecordedState(services, running));
  STASIS_TRY(gpu_state::ReturnStoredData(services, running));
  for (const auto& p : running) STASIS_TRY(gpu_state::ForgetSuspended(services.paths, p.id));
  return "finished: the program is running";
}

Result<std::string> UndoResume(Services& services, const Operation& operation) {
  STASIS_ASSIGN(bool back, gpu_state::AnyMemoryReturned(services, operation.device_processes));
  return back ? FinishResume(services, operation) : UndoOnProgram(services, operation);
}

// Whether CRIU has begun to kill the program (HasBegunToEnd()). CRIU begins with the first process,
// after it has been notified that the image is complete. The shim then records that the job was
// dumped.
enum class BegunToEnd { kNo, kYes, kUnknown };

Result<BegunToEnd> HasBegunToEnd(const Services& services, const Operation& operation) {
  const auto& ended = operation.phases_ended;
  const bool told = std::find(ended.begin(), ended.end(), "commit") != ended.end();
  if (operation.leave_running || !told) return BegunToEnd::kNo;
  const process::ProcessId& root = operation.members.front();
  if (process::WasKilled(root)) return BegunToEnd::kYes;
  if (process::IsAlive(root)) return BegunToEnd::kNo;
  if (operation.job.empty()) return BegunToEnd::kUnknown;
  const jobs::Store store(services.paths.jobs());
  auto job = store.Load(operation.job);
  if (job && job->processes && job->processes->root == root) {
    job = jobs::AwaitEnd(store, operation.job, Deadline::In(kRecordEnd));
  }
  if (!job && job.error().code == Code::kNotFound) return BegunToEnd::kUnknown;
  if (!job) return Fail(std::move(job).error());
  if (!job->ending || !job->processes || job->processes->root != root) return BegunToEnd::kUnknown;
  return job->ending->dumped ? BegunToEnd::kYes : BegunToEnd::kNo;
}

Result<std::string> FinishOnProgram(Services& services, const Operation& operation) {
  if (!AnyAlive(operation))
    return fmt::format("finished: the image {} is complete", operation.image);
  STASIS_ASSIGN(const BegunToEnd begun, HasBegunToEnd(services, operation));
  if (begun == BegunToEnd::kYes) {
    const auto left = CountAlive(operation);
    STASIS_TRY(checkpoint::EndAll(operation.members));
    return fmt::format(
        "finished: the image {} is complete; a part of the program had already ended, and the rest "
        "({} of {} processes) was ended now",
        operation.image, left, operation.members.size());
  }
  std::string complete = fmt::format("the image {} is complete", operation.image);
  if (begun == BegunToEnd::kUnknown) {
    complete += fmt::format(
        "; the program's first process, {}, has ended, by this dump or by itself; remaining: {}",
        ToString(operation.members.front().pid), List(Members(true, operation)));
  }
  STASIS_TRY(Annotate(ContinueQueues(services, operation), complete));
  STASIS_TRY(Annotate(gpu_state::ReturnAllToRecordedState(services, operation.device_processes),
                      complete));
  STASIS_TRY(Annotate(gpu_state::ReturnStoredData(services, operation.device_processes), complete));
  STASIS_TRY(ClearDumpedMark(services, operation));
  if (operation.leave_running) return complete;
  if (begun == BegunToEnd::kUnknown) {
    return complete + ", as before the dump. End them before you restore the image";
  }
  return Members(false, operation).empty()
             ? complete + "; the program was not ended and is as it was before"
             : complete + "; the program was not ended: " + DescribeProgramState(operation);
}

Result<std::string> FinishDump(Services& services, const Operation& operation) {
  if (operation.elsewhere != plan::Elsewhere::kNo) return EndMovedProgram(operation);
  STASIS_ASSIGN(const std::string outcome, FinishOnProgram(services, operation));
  return SweepStore(outcome, operation);
}

// Removes the image that a killed restore from a repository has left in a hidden folder of the
// store.
Status SweepStreamed(const Operation& operation) {
  const std::filesystem::path folder = std::filesystem::path(operation.image).parent_path();
  if (!folder.filename().string().starts_with('.')) return {};
  STASIS_TRY(checkpoint::SweepStoreOf(folder));
  return {};
}

Result<std::string> FinishRestore(Services&, const Operation& operation) {
  STASIS_TRY(SweepStreamed(operation));
  const bool alive = process::IsAlive(operation.restored_root);
  return fmt::format("finished: the program {} process {}{}",
                     alive ? "is running as" : "was restored as", operation.restored_root.pid.value,
                     alive ? "" : " and has ended since");
}

Result<std::string> UndoRestore(Services& services, const Operation& operation) {
  // If the commit did not reach the shim, the shim has killed the tree. If the commit reached the
  // shim, the restore has succeeded, even if the root has ended by itself since.
  auto job = jobs::Store(services.paths.jobs()).Load(operation.job);
  // Without the job's state it is unknown whether the commit reached the shim, and a program is not
  // killed on a guess.
  if (!job && job.error().code != Code::kNotFound) return Fail(std::move(job).error());
  if (job && job->processes && job->processes->root == operation.restored_root) {
    return FinishRestore(services, operation);
  }
  STASIS_TRY(checkpoint::EndTree(operation.restored_shim, operation.restored_root));
  STASIS_TRY(SweepStreamed(operation));
  return fmt::format("undone: the half-restored program was ended, and the image {} is unchanged",
                     operation.target);
}

using Recovery = Result<std::string> (*)(Services&, const Operation&);

// Repeats the recovery if processes ended during it.
Result<std::string> RetryWithoutEnded(Recovery recover, Services& services,
                                      const Operation& operation) {
  for (auto alive = CountAlive(operation);;) {
    auto outcome = recover(services, operation);
    const auto before = std::exchange(alive, CountAlive(operation));
    if (outcome || outcome.error().code != Code::kNotFound || alive == before) return outcome;
  }
}

struct Row {
  const char* verb;
  Recovery undo;
  Recovery finish;
};
constexpr Row kRecoveries[] = {
    {"suspend", UndoSuspend, FinishSuspend},
    {"resume", UndoResume, FinishResume},
    {"dump", UndoDump, FinishDump},
    {"restore", UndoRestore, FinishRestore},
};

Result<std::string> RecoverOperation(Services& services, const Operation& operation) {
  STASIS_ASSIGN(std::string boot, process::BootId());
  if (operation.boot_id != boot) {
    // An operation of an earlier boot can have left files but no processes.
    STASIS_TRY(checkpoint::RemoveCpuFiles(services.paths, operation.owner));
    STASIS_TRY(RemoveTree(checkpoint::WorkFolder(services.paths, operation.owner)));
    return SweepStore("the machine has been restarted since then", operation);
  }
  // The command claimed the target but began no phase.
  if (operation.phases_begun.empty()) return "undone: the operation had not changed anything yet";
  for (const Row& row : kRecoveries) {
    if (operation.verb != row.verb) continue;
    auto recovered =
        RetryWithoutEnded(operation.committed ? row.finish : row.undo, services, operation);
    // Name the ended processes, because their end may be why the others cannot continue.
    const auto ended = Members(false, operation);
    if (!recovered && !ended.empty()) {
      recovered = Annotate(std::move(recovered), NameEnded(ended));
    }
    STASIS_ASSIGN(std::string outcome, std::move(recovered));
    STASIS_TRY(checkpoint::RemoveCpuFiles(services.paths, operation.owner));
    STASIS_TRY(RemoveTree(checkpoint::WorkFolder(services.paths, operation.owner)));
    return outcome;
  }
  return Fail(Code::kUnimplemented, "the journal has an unknown operation, " + operation.verb,
              "use the version of Stasis that wrote it");
}

// Names the processes that inherited the lock of an entry whose owner has exited.
std::string NameLockHolders(const JournalEntry& entry) {
  std::error_code failed;
  const std::string path = std::filesystem::canonical(entry.path, failed);
  std::string names;
  for (const auto& holder : process::FindHolders({path}).value_or(std::vector<process::Stat>())) {
    if (holder.id.pid.value == ::getpid()) continue;
    names += fmt::format("{}process {} ({})", names.empty() ? "" : " and ", holder.id.pid.value,
                         holder.comm);
  }
  return fmt::format(
      "its command has exited, but {} still holds the journal lock; retry later, or kill it "
      "(`kill -9`) if it is hung",
      names.empty() ? "one of its helpers" : names);
}

// Frees the arenas of programs that have ended.
void SweepArenas(const Paths& paths) {
  if (auto store = gpu_state::ExistingArenas(paths)) (void)store->Sweep();
}

}  // namespace

Result<std::vector<RecoveredOperation>> Recover(Services& services, const Deadline& wait) {
  STASIS_ASSIGN(auto entries, plan::ScanJournal(services.paths, wait));
  std::vector<RecoveredOperation> report;
  for (const JournalEntry& entry : entries) {
    RecoveredOperation recovered;
    recovered.verb = entry.operation.verb;
    recovered.target = entry.operation.target;
    recovered.members = entry.operation.members;
    recovered.id = entry.operation.id;
    if (entry.foreign) {
      recovered.under_way = true;
      recovered.ok = true;
      const std::string& host = entry.operation.host;
      recovered.outcome =
          host.empty() || host == process::HostName()
              ? "the operation belongs to another pid namespace; run `stasis recover` there"
              : fmt::format("the operation belongs to {}; run `stasis recover` there", host);
    } else if (!entry.lock) {
      recovered.under_way = true;
      recovered.ok = true;
      recovered.outcome = fmt::format("in progress (process {})", entry.operation.owner.pid.value);
      if (!process::IsAlive(entry.operation.owner)) {
        recovered.ok = false;
        recovered.outcome = NameLockHolders(entry);
      }
    } else if (!entry.readable) {
      recovered.verb = "unknown";
      recovered.outcome = fmt::format(
          "the journal entry {} is damaged ({}); delete the file when all processes of the "
          "operation have ended",
          entry.path, entry.problem);
    } else if (auto outcome = RecoverOperation(services, entry.operation); outcome) {
      Status removed = plan::RemoveEntry(entry);
      recovered.ok = removed.has_value();
      recovered.outcome = removed ? *outcome : removed.error().ToString();
    } else {
      recovered.outcome = outcome.error().ToString();
    }
    log::Write(recovered.ok ? log::Level::kInfo : log::Level::kError, "recover",
               {{"cut_off", recovered.id},
                {"cut_off_verb", recovered.verb},
                {"cut_off_target", recovered.target},
                {"outcome", recovered.outcome}});
    report.push_back(std::move(recovered));
  }
  gpu_state::SweepSuspended(services.paths);
  SweepArenas(services.paths);
  checkpoint::SweepCpuFiles(services.paths);
  return report;
}

}  // namespace stasis::operations
