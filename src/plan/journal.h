// The journal: an operation writes here what it is about to do, so that a later command can finish
// or undo it. There is one file per operation below Paths::journal(), locked (flock) by this
// process and by CRIU and the device helper, which inherit the descriptor. If the lock is free, the
// command was killed and no process of it still works on the program.
//
//   file = JSON lines   {"version":1, "verb":..., ...}            header: see Operation
//                       {"phase":"gpu-lock","at":"begin"|"end"}
//                       {"note":{...}}                            later facts, merged over the
//                       header
//                       {"committed":true}
//
// Each line is appended by one write(2). Nothing is synced. A power failure can leave a torn last
// line, but it also ends all processes, so an entry of an earlier boot only serves to find a
// partial image that must be swept.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/paths.h"
#include "base/result.h"
#include "device/ids.h"
#include "process/proc.h"

namespace stasis::plan {

struct RecordedProcess {
  process::ProcessId id;
  device::ProcessState initial = device::ProcessState::kNone;
  // The GPUs, and the bytes of GPU memory, that the driver's restore will need. If `gpus` is empty,
  // both are unknown.
  std::vector<device::GpuUuid> gpus;
  uint64_t device_bytes = 0;
  // For a resume: the GPUs of the driver's restore. Empty if the GPUs do not change.
  device::GpuMap map = {};
  // The process is suspended with its context kept: the driver reports it as running (or locked),
  // `away_bytes` of its data are in arenas, and `device_bytes` are still on the GPU.
  bool context_kept = false;
  uint64_t away_bytes = 0;
  // Not in the journal: the GPUs that the agent shows to the program, if it hides others.
  std::vector<device::GpuUuid> visible = {};

  // Returns true if the GPU memory of the process is in arenas or was saved by the driver.
  bool suspended() const { return context_kept || initial == device::ProcessState::kCheckpointed; }
};

// Whether a program is running on another host.
enum class Elsewhere : uint8_t { kNo, kPerhaps, kYes };

// Everything needed to undo or finish an operation without the process that ran it.
struct Operation {
  std::string verb;    // "suspend", "resume", "dump", "restore"
  std::string target;  // as given by the user
  std::string boot_id;
  std::string host;  // name of the machine; written by Begin(). Empty in entries of older versions
  // The pid namespace of all pids here; written by Begin(). 0: unknown.
  uint64_t pid_namespace = 0;
  process::ProcessId owner;                 // the process that runs it
  std::vector<process::ProcessId> members;  // the whole tree
  std::vector<RecordedProcess>
      device_processes;  // members that use a GPU, with their state before the first phase
  std::string image;     // final path of the image that is written or read
  process::ProcessId restored_shim, restored_root;  // notes of a restore
  std::string job;
  bool leave_running = false;
  Elsewhere elsewhere = Elsewhere::kNo;  // a note of a dump that moves the program
  // A note of such a dump: the processes that it stops, without those that were stopped before.
  std::vector<process::ProcessId> stopped;
  std::string id;  // id of the operation; written by Begin(). Empty in entries of older versions

  // Set when an entry is read.
  std::vector<std::string> phases_begun, phases_ended;
  bool committed = false;
};

class Journal {
 public:
  Journal(Journal&&) = default;
  Journal& operator=(Journal&&) = delete;

  // Creates the entry's file, locked and under a temporary name. Every helper that is started after
  // this inherits the lock, even before the target is surveyed. Leaves nothing if Begin() is not
  // called.
  static Result<Journal> Prepare(const Paths& paths, const std::string& verb);
  ~Journal();

  // Claims the target. Call it before contacting the program, because a connection to its agent
  // looks like a connection of the program. From then on, any other operation on one of
  // `operation.members`, or on the job, is refused, and its error names this operation. May be
  // called again when more members are known. Returns kAborted if another operation works on one of
  // the members or on the job. The claim ends with this object if Begin() is not called.
  Status Claim(const Operation& operation);
  // Writes the header, with this process's pid namespace, and gives the entry its name. Returns
  // kAborted if another operation works on one of the members; the message names it. Returns
  // kFailedPrecondition if a killed command left an entry about one of the members; recover first.
  Status Begin(const Operation& operation);

  Status PhaseBegins(const std::string& phase);
  Status PhaseEnded(const std::string& phase);
  Status Commit();
  // Replaces the members with those of another survey.
  Status NoteMembers(const std::vector<process::ProcessId>& members);
  // During a dump that moves the program: notes whether the program may run on the other host.
  Status NoteElsewhere(Elsewhere elsewhere);
  // Before such a dump stops these processes: recovery continues them.
  Status NoteStopped(const std::vector<process::ProcessId>& stopped);
  Status NoteRestored(const process::ProcessId& shim, const process::ProcessId& root);
  // Removes the entry at the end of the operation.
  Status Finish();

  const std::string& verb() const { return verb_; }
  // The descriptor that holds the lock. Helpers that work on the program must inherit it.
  int lock_fd() const { return fd_.get(); }

 private:
  Journal(const Paths& paths, const std::string& verb, std::string temporary, std::string path,
          UniqueFd fd)
      : paths_(paths),
        verb_(verb),
        temporary_(std::move(temporary)),
        path_(std::move(path)),
        fd_(std::move(fd)) {}
  Status Enter(const Operation& operation, bool refuse_left);
  Status Append(const std::string& line);

  Paths paths_;
  std::string verb_;
  std::string temporary_;  // the file's path until Claim() or Begin()
  std::string path_;
  UniqueFd fd_;
  bool begun_ = false;
};

// An entry in the journal's folder.
struct JournalEntry {
  std::string path;
  Operation operation;
  // The entry's lock, held during recovery; absent if a process of the operation still holds it.
  UniqueFd lock;
  bool readable = true;  // false: damaged, as `problem` says
  // The entry was written on another machine, or in another pid namespace of this boot (a
  // container), with the same folder, so its pids mean nothing here. ScanJournal never locks it.
  bool foreign = false;
  std::string problem;
};

// Returns all entries, and locks those whose lock is free. If an owner has ended, waits until
// `wait` for its helpers to exit.
Result<std::vector<JournalEntry>> ScanJournal(const Paths& paths, const Deadline& wait);
// Returns kAborted if an operation works on the process; the message names the operation.
Status CheckNotUnderWay(const Paths& paths, const process::ProcessId& id);
// Does the same for a job, because a restore works on a job before the job has processes.
Status CheckJobNotUnderWay(const Paths& paths, const std::string& job);
// Takes over the entries of a job that other machines wrote and left, as if they were of an earlier
// boot of this machine, so that recovery works on them here. Returns their number.
Result<size_t> TakeOverEntries(const Paths& paths, const std::string& job);
Status RemoveEntry(const JournalEntry& entry);

}  // namespace stasis::plan
