// A job: a named program that Stasis started, restored or adopted. Its current state is read from
// its shim's files and /proc; the database only records it (see store.h).
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

namespace stasis::jobs {

enum class CheckpointKind { kDump, kSuspend };
std::string_view KindName(CheckpointKind kind);

// A copy of an image in a repository.
struct ImageCopy {
  std::string repository;  // the repository's name on this machine, or its location
  std::string name;        // name of the image there
  bool plain = false;      // the repository at this location is not encrypted
  bool operator==(const ImageCopy&) const = default;
};

// A saved state of the job: a dump to an image, or a suspend.
struct Checkpoint {
  std::string image;  // absolute path; empty for a suspend
  std::string name;   // name of the image; may be empty
  int64_t time_ms = 0;
  uint64_t bytes = 0;  // bytes that the image refers to, or GPU memory released
  double seconds = 0;  // duration of the operation
  // Bytes newly written for this checkpoint; absent if unknown.
  std::optional<uint64_t> written_bytes = {};
  CheckpointKind kind = CheckpointKind::kDump;
  std::string account = {};            // JSON as printed by `--json`; may be empty
  std::optional<ImageCopy> copy = {};  // the latest copy; the image itself may have been deleted
};

// The processes of the job, as recorded by its shim, or by `manage` for an adopted program.
struct Processes {
  process::ProcessId shim;  // pid 0 if there is none
  process::ProcessId root;
  std::string boot_id;
  FileId log;  // identifies the log file independent of its name; 0 if there is none
  // Name of the machine on which they run; empty in records of older versions.
  std::string host = {};
  // The database does not have the host.
  bool operator==(const Processes& other) const {
    return shim == other.shim && root == other.root && boot_id == other.boot_id && log == other.log;
  }
};

// How the root ended, as recorded by its shim.
struct Ending {
  bool dumped = false;  // the root was killed after a complete dump
  int code = 0;         // exit code; 128+n for a signal, 75 if dumped
  int signal = 0;       // 0 if none
  int64_t time_ms = 0;
  bool operator==(const Ending&) const = default;
};

enum class State {
  kStarting,
  kRunning,
  kEnding,  // the root has ended and its shim is recording that
  kExited,
  kDumped,
  kLost,  // the root's end was not recorded: reboot, killed shim, or adopted job
  // It was started on another machine that sees the same folders, and its end was not recorded.
  kElsewhere,
};
std::string_view StateName(State state);
std::optional<State> ParseState(std::string_view name);
inline bool HasEnded(State state) {
  return state == State::kExited || state == State::kDumped || state == State::kLost;
}

// The beginning of Job::dumped_image if the program was moved: "ssh://HOST/JOB". It is
// kPerhapsMovedTo until the other host has answered that the program is running there.
inline constexpr std::string_view kMovedTo = "ssh://";
inline constexpr std::string_view kPerhapsMovedTo = "perhaps ssh://";

struct Job {
  std::string id;
  std::vector<std::string> argv;
  std::string cwd;
  uid_t uid = 0;  // the user who started it
  gid_t gid = 0;
  int64_t created_ms = 0;
  int64_t changed_ms = 0;  // time of the last change in the database
  std::string log;
  std::string agent;  // path of the agent's library; empty if started without the agent
  std::string share;  // class of a job that shares GPUs (IsShareClass); empty if it does not
  // Oldest first. A job from a list of jobs has only its last image.
  std::vector<Checkpoint> checkpoints;

  // The following is the state from the shim's records and /proc when the job was read.
  State state = State::kStarting;
  // If false for a running job, the exit code will be lost. If true for an ended job, background
  // processes are left.
  bool has_shim = false;
  std::optional<Processes> processes;  // absent if not yet started or if the start was killed
  std::optional<Ending> ending;        // how these processes ended
  // The image that contains these processes, if they were killed after the dump or are about to be
  // killed.
  std::optional<std::string> dumped_image;
};

// The classes of jobs that share GPUs: "interactive" and "batch".
bool IsShareClass(std::string_view name);

// Returns an error that names the machine if the job runs on another one.
Status CheckHere(const Job& job);

// Returns "HOST/JOB" if the job's program is known to have been moved to another host, otherwise an
// empty string.
std::string MovedTo(const Job& job);
// Returns "HOST/JOB" if the job's program was ended here for a move, and the other host has not
// answered that it is running there; otherwise an empty string.
std::string PerhapsMovedTo(const Job& job);
// Returns true if the job's program was moved to another host, or perhaps was.
inline bool WasMoved(const Job& job) {
  return job.dumped_image && (job.dumped_image->starts_with(kMovedTo) ||
                              job.dumped_image->starts_with(kPerhapsMovedTo));
}

// Returns true if the job was adopted while running (manage.h) and not restored since. Then it has
// no shim, log or terminal.
inline bool IsAdopted(const Job& job) {
  return job.processes && job.processes->shim.pid.value == 0;
}

// Returns living processes of the job that are not below its root, such as daemons adopted by the
// shim. A dump of the root's tree does not contain them.
std::vector<process::HostPid> BackgroundProcesses(const Job& job);

// Ids match [a-z][a-z0-9._-]* and have at most 64 characters. A bare number is a process id
// instead.
inline constexpr size_t kMaxIdLength = 64;
bool IsValidId(std::string_view id);
// Returns two random words such as "quiet-heron"; the id may be taken.
std::string GenerateId();

}  // namespace stasis::jobs
