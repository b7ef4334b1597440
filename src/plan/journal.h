// The journal: what an operation is about to do, written before it does it, so that whoever finds
// it later can finish or undo it. One file per operation, below Paths::journal(), locked (flock) by
// whoever works on it: our own process and, because the lock's descriptor is handed on to them,
// CRIU and the device helper. A file whose lock is free was left by a run that was killed, and
// nothing of that run still works on the program.
//
//   <file> = JSON lines:  {"version":1, "verb":..., ...}    the header: see Operation
//                         {"phase":"gpu-lock","at":"begin"|"end"}
//                         {"note":{...}}                     facts that came later, merged over the
//                         header
//                         {"committed":true}
//
// Lines are appended by one write(2) each; a torn last line is what a power failure leaves, and
// then the processes are gone as well. So nothing is synced here: an entry of another boot only
// says which partial image to sweep.
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
  // What the driver will need to give it its GPU state back; without `gpus` that is not known.
  std::vector<device::GpuUuid> gpus;
  uint64_t device_bytes = 0;
  // Of a resume: where the driver's restore puts it. Empty: where it was.
  device::GpuMap map = {};
  // Suspended, its context kept: the driver calls it running (or locked), and so much of its data
  // is in arenas. `device_bytes` is what it has on the GPU still.
  bool context_kept = false;
  uint64_t away_bytes = 0;

  // Its memory is with us, or with the driver.
  bool suspended() const { return context_kept || initial == device::ProcessState::kCheckpointed; }
};

// All that must be known to undo or finish an operation without the process that ran it.
struct Operation {
  std::string verb;    // "suspend", "resume", "dump", "restore"
  std::string target;  // as the user named it
  std::string boot_id;
  // The pid namespace in which all its process ids mean something; written by Begin(). 0: unknown.
  uint64_t pid_namespace = 0;
  process::ProcessId owner;                 // the process that runs it
  std::vector<process::ProcessId> members;  // the whole tree
  std::vector<RecordedProcess>
      device_processes;  // members that use a GPU, with the state before the first phase
  std::string image;     // final path of the image, when one is written or read
  process::ProcessId restored_shim, restored_root;  // notes of a restore
  std::string job;
  bool leave_running = false;
  std::string id;  // of the operation; written by Begin(). Empty: an older Stasis wrote it

  // Filled in when an entry is read back.
  std::vector<std::string> phases_begun, phases_ended;
  bool committed = false;
};

class Journal {
 public:
  Journal(Journal&&) = default;
  Journal& operator=(Journal&&) = delete;

  // Makes the entry's file, locked and nameless yet: every helper that is started from now on can
  // inherit its lock, before it is known what the operation will touch. Without Begin() nothing is
  // left of it.
  static Result<Journal> Prepare(const Paths& paths, const std::string& verb);
  ~Journal();

  // Claims the target before the program is asked anything: a connection to its agent, for example,
  // looks like a connection of the program. From then on every other operation on one of
  // `operation.members`, or on its job, is refused with this one's name. May be called again when
  // more members are known. kAborted when another operation is under way. The claim ends with this
  // object if Begin() is not called.
  Status Claim(const Operation& operation);
  // Writes the header, for our own pid namespace, and gives the entry its name. kAborted when
  // another operation works on one of the members: the error names it. kFailedPrecondition when a
  // killed run left an entry about one of them: call Recover first.
  Status Begin(const Operation& operation);

  Status PhaseBegins(const std::string& phase);
  Status PhaseEnded(const std::string& phase);
  Status Commit();
  // Whom the operation holds, when that is known better than at its begin.
  Status NoteMembers(const std::vector<process::ProcessId>& members);
  Status NoteRestored(const process::ProcessId& shim, const process::ProcessId& root);
  // The operation is over and nothing is left of it: removes the entry.
  Status Finish();

  const std::string& verb() const { return verb_; }
  // To be inherited by every helper that works on the program.
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
  std::string temporary_;  // its name until Claim() or Begin()
  std::string path_;
  UniqueFd fd_;
  bool begun_ = false;
};

// An entry found in the journal's folder.
struct JournalEntry {
  std::string path;
  Operation operation;
  // Held while the entry is being recovered; absent when somebody still works on it.
  UniqueFd lock;
  bool readable = true;  // false: damaged; `problem` says how
  // Written in another pid namespace of this boot (a container with the same state folder): its
  // process ids mean nothing to us. Never locked by us, whatever became of it.
  bool foreign = false;
  std::string problem;
};

// All entries; those whose lock was free come back locked by us. `wait` is for entries whose owner
// is dead while a helper of it is still winding down.
Result<std::vector<JournalEntry>> ScanJournal(const Paths& paths, const Deadline& wait);
// kAborted when an operation that is under way works on that process: the error names it.
Status CheckNotUnderWay(const Paths& paths, const process::ProcessId& id);
// As CheckNotUnderWay, of a job, which a restore works on before there are processes of it.
Status CheckJobNotUnderWay(const Paths& paths, const std::string& job);
Status RemoveEntry(const JournalEntry& entry);

}  // namespace stasis::plan
