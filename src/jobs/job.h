// A job: a program that Stasis started, restored or was told to manage, with a name. What it is now
// is said by its shim's files and by /proc; the database remembers (see store.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {
class Snapshot;
}

namespace stasis::jobs {

enum class CheckpointKind { kDump, kSuspend };
std::string_view KindName(CheckpointKind kind);

// One time that the job's state was saved: an image of it was made, or it gave up its GPU.
struct Checkpoint {
  std::string image;  // absolute path; empty for a suspend
  std::string name;   // of the image, may be empty
  int64_t time_ms = 0;
  uint64_t bytes = 0;  // what the image refers to, or the GPU memory that was given up
  double seconds = 0;  // what the operation took
  // What had to be written of it; absent where nobody has noted it.
  std::optional<uint64_t> written_bytes = {};
  CheckpointKind kind = CheckpointKind::kDump;
  std::string account = {};  // JSON, as `--json` printed it; empty when it has none
};

// Which processes the job is, as its shim has recorded it; of a program that was adopted as it ran,
// as `manage` has.
struct Processes {
  process::ProcessId shim;  // pid 0: it never had one
  process::ProcessId root;
  std::string boot_id;
  FileId log;  // which file that is, under whatever name by now; 0: it has none
  bool operator==(const Processes&) const = default;
};

// How the root ended, as its shim has recorded it.
struct Ending {
  bool dumped = false;  // it was ended for an image that is complete
  int code = 0;         // its exit code, 128+n for a signal, 75 when dumped
  int signal = 0;       // 0: none
  int64_t time_ms = 0;
  bool operator==(const Ending&) const = default;
};

enum class State {
  kStarting,
  kRunning,
  kEnding,  // the root has ended, its shim is writing that down
  kExited,
  kDumped,
  kLost,  // it has ended and nobody knows how: the machine restarted, its shim was killed, or it
          // never had one
};
std::string_view StateName(State state);
std::optional<State> ParseState(std::string_view name);
inline bool HasEnded(State state) {
  return state == State::kExited || state == State::kDumped || state == State::kLost;
}

struct Job {
  std::string id;
  std::vector<std::string> argv;
  std::string cwd;
  uid_t uid = 0;  // who started it
  gid_t gid = 0;
  int64_t created_ms = 0;
  int64_t changed_ms = 0;  // when the database last took something down of it
  std::string log;
  std::string agent;  // path of the agent's library; empty: started without
  // Its images, oldest first; a list of jobs has only the last one of each.
  std::vector<Checkpoint> checkpoints;

  // What the shim's records and /proc said when the job was read; never written through this
  // struct.
  State state = State::kStarting;
  // False for a running job: nobody will know its exit code. True for
  // one that has ended: processes that it left in the background still run.
  bool has_shim = false;
  std::optional<Processes> processes;       // absent: not started yet, or the start was killed
  std::optional<Ending> ending;             // of these processes
  std::optional<std::string> dumped_image;  // these processes are, or are about to be, only there
};

// It was adopted as it ran (manage.h) and has not been restored since: it has no shim, no log and
// no terminal of ours.
inline bool IsAdopted(const Job& job) {
  return job.processes && job.processes->shim.pid.value == 0;
}

// Living processes of the job that are not below its root: daemons that left it and hang under the
// shim. A dump of the root's tree would not hold them. `snapshot`: of all processes, if there is
// one.
std::vector<process::HostPid> BackgroundProcesses(const Job& job);
std::vector<process::HostPid> BackgroundProcesses(const Job& job,
                                                  const process::Snapshot& snapshot);

// Ids: [a-z][a-z0-9._-]*, 64 characters at most. A bare number is never one: it is a process.
inline constexpr size_t kMaxIdLength = 64;
bool IsValidId(std::string_view id);
// Two words, e.g. "quiet-heron". Random; may be taken.
std::string GenerateId();

}  // namespace stasis::jobs
