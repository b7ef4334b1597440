#include "jobs/store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "base/file.h"
#include "jobs/record.h"
#include "shim/shim_protocol.h"

namespace stasis::jobs {
namespace {

constexpr char kLockFile[] = "/lock";
constexpr int kMaxGenerated = 100;
constexpr int kMaxReadings = 20;

int64_t NowMs() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

// `operation` is one of flock(2)'s; kAborted when it does not wait and somebody holds it.
Result<UniqueFd> LockFile(const std::string& path, int operation, int flags = O_RDWR) {
  STASIS_ASSIGN(UniqueFd fd, Open(path, flags));
  if (TEMP_FAILURE_RETRY(::flock(fd.get(), operation)) != 0) {
    if (errno == EWOULDBLOCK) return Fail(Code::kAborted, path + " is locked");
    return FailErrno(errno, "lock " + path);
  }
  return fd;
}

// Moves the folder out of sight first, so that no reader meets half of it.
Status RemoveFolder(const std::string& folder) {
  size_t slash = folder.rfind('/');
  std::string hidden = folder.substr(0, slash + 1) + ".old-XXXXXX";
  if (::mkdtemp(hidden.data()) == nullptr) return FailErrno(errno, "make " + hidden);
  if (::rename(folder.c_str(), hidden.c_str()) != 0) {
    int error = errno;
    ::rmdir(hidden.c_str());
    return FailErrno(error, "remove " + folder);
  }
  return RemoveTree(hidden);
}

// A record of the shim: absent is no error, for the job may not have come that far.
template <class T>
Result<std::optional<T>> ReadRecord(const std::string& path,
                                    Result<T> (*decode)(const std::string&)) {
  auto text = ReadFile(path, kMaxRecordBytes);
  if (!text && text.error().code == Code::kNotFound) return std::optional<T>();
  if (!text) return Fail(std::move(text).error());
  auto record = decode(*text);
  if (!record) return Annotate(Result<std::optional<T>>(Fail(record.error())), path);
  return std::optional<T>(std::move(*record));
}

tl::unexpected<Error> NoSuchJob(const std::string& id) {
  return Fail(Code::kNotFound, "there is no job " + id,
              ::geteuid() != 0 ? "`stasis ps -a` lists them"
                               : "`stasis ps -a` lists those of root; name a program of another "
                                 "user by its process id, or ask as that user");
}

}  // namespace

Status Claim::Discard() {
  Status status = RemoveFolder(folder_);
  lock_.Reset();
  return status;
}

Result<UniqueFd> Store::LockStore() const {
  return LockFile(directory_ + "/.lock", LOCK_EX, O_RDWR | O_CREAT);
}

// Nothing of it ever ran, and nobody is about to start it: its creator was killed.
bool Store::IsAbandoned(const std::string& id) const {
  std::string folder = Folder(id);
  if (PathExists(folder + "/" + shim::kProcessFile)) return false;
  if (!LockFile(folder + kLockFile, LOCK_EX | LOCK_NB)) return false;
  auto shim = LockFile(folder + "/" + shim::kShimLock, LOCK_EX | LOCK_NB);
  if (!shim && shim.error().code != Code::kNotFound) return false;
  return !PathExists(folder + "/" + shim::kProcessFile);
}

// What a killed creator or remover left. Under the store's lock nobody makes one at the same time.
void Store::Sweep() const {
  auto names = ListDir(directory_);
  if (!names) return;
  for (const std::string& name : *names) {
    if (name.starts_with(".new-") || name.starts_with(".old-")) {
      (void)RemoveTree(directory_ + "/" + name);
    } else if (IsValidId(name) && IsAbandoned(name)) {
      (void)RemoveFolder(Folder(name));
    }
  }
}

Result<Claim> Store::Create(const NewJob& wanted) const {
  if (!wanted.id.empty() && !IsValidId(wanted.id)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0, "'" + wanted.id + "' cannot name a job",
                "a name starts with a lower-case letter, goes on with those, digits, '.', '_' and "
                "'-', and has 64 characters at most");
  }
  STASIS_ASSIGN(UniqueFd store_lock, LockStore());
  Sweep();

  Claim claim;
  std::string hidden = directory_ + "/.new-XXXXXX";
  if (::mkdtemp(hidden.data()) == nullptr) return FailErrno(errno, "make " + hidden);
  Job& job = claim.job_;
  job.argv = wanted.argv;
  job.cwd = wanted.cwd;
  job.agent = wanted.agent;
  job.created_ms = NowMs();
  auto lock = LockFile(hidden + kLockFile, LOCK_EX, O_RDWR | O_CREAT);
  Status status = lock ? Status() : Status(Fail(lock.error()));
  for (int tries = 0; status && tries < kMaxGenerated; ++tries) {
    job.id = wanted.id.empty() ? GenerateId() : wanted.id;
    claim.folder_ = Folder(job.id);
    job.log = wanted.log.empty() ? claim.folder_ + "/log" : wanted.log;
    std::string text = EncodeJob(job);
    // Nothing is started of which the record could not be read again.
    if (text.size() > kMaxJobBytes) {
      status = Fail(Code::kResourceExhausted, "the list of arguments is too long");
    } else if (auto again = DecodeJob(text); !again) {
      status = Fail(Code::kInvalidArgument, "this cannot be a job: " + again.error().message);
    } else {
      status = WriteFileDurably(hidden + "/" + kJobFile, text);
    }
    if (!status) break;
    // Decides which of two creators has it: a folder that holds something is not replaced.
    if (::rename(hidden.c_str(), claim.folder_.c_str()) == 0) {
      claim.lock_ = std::move(*lock);
      return claim;
    }
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) {
      status = FailErrno(errno, "make " + claim.folder_);
    } else if (!wanted.id.empty()) {
      auto other = Load(wanted.id);
      bool ended = other && HasEnded(other->state);
      status = Fail(
          Code::kAlreadyExists,
          "there is a job " + wanted.id + (ended ? " already, which has ended" : " already"),
          ended ? "`stasis delete " + wanted.id + "` makes its name free" : "choose another name");
    }
  }
  (void)RemoveTree(hidden);
  if (status) return Fail(Code::kResourceExhausted, "no free name was found", "name it with --job");
  return Fail(std::move(status).error());
}

// Liveness is read before the records that the end leaves behind, never after: what has ended at
// that moment has written all that it will.
Status Store::ReadState(Job& job) const {
  std::string folder = Folder(job.id);
  const auto& processes = job.processes;
  if (!processes) {
    auto lock = LockFile(folder + kLockFile, LOCK_SH | LOCK_NB);
    bool held = !lock && lock.error().code == Code::kAborted;
    job.state = held ? State::kStarting : State::kLost;
    return {};
  }
  STASIS_ASSIGN(std::string boot_id, process::BootId());
  bool this_boot = boot_id == processes->boot_id;
  bool root_lives = this_boot && process::IsAlive(processes->root);
  job.has_shim = this_boot && process::IsAlive(processes->shim);

  STASIS_ASSIGN(auto ending, ReadRecord(folder + "/" + shim::kExitFile, DecodeEnding));
  STASIS_ASSIGN(auto mark, ReadRecord(folder + "/" + shim::kDumpedFile, DecodeDumped));
  // A tree that was restored since makes them void.
  if (ending && ending->root == processes->root) job.ending = ending->ending;
  if (mark && mark->root == processes->root) job.dumped_image = mark->image;

  if (job.ending) {
    job.state = job.ending->dumped ? State::kDumped : State::kExited;
  } else if (root_lives) {
    job.state = State::kRunning;
  } else if (job.has_shim) {
    job.state = State::kEnding;
  } else {
    // Without a shim nobody saw the end, but what was going to be done is known.
    job.state = job.dumped_image ? State::kDumped : State::kLost;
  }
  return {};
}

Result<Job> Store::LoadFolder(const std::string& id) const {
  std::string folder = Folder(id), process_file = folder + "/" + shim::kProcessFile;
  STASIS_ASSIGN(std::string text, ReadFile(folder + "/" + kJobFile, kMaxJobBytes));
  STASIS_ASSIGN(const Job written, DecodeJob(text));
  if (written.id != id) return Fail(Code::kDataLoss, "the record is of the job " + written.id);
  for (int reading = 0; reading < kMaxReadings; ++reading) {
    Job job = written;
    STASIS_ASSIGN(job.processes, ReadRecord(process_file, DecodeProcesses));
    STASIS_TRY(ReadState(job));
    STASIS_ASSIGN(auto now, ReadRecord(process_file, DecodeProcesses));
    // Else another tree was taken into the job meanwhile, and the records were not of one time.
    if (now == job.processes) return job;
  }
  return Fail(Code::kAborted, "the job keeps changing");
}

Result<Job> Store::Load(const std::string& id) const {
  if (!IsValidId(id) || !PathExists(Folder(id))) return NoSuchJob(id);
  return Annotate(LoadFolder(id), "read job " + id);
}

Result<std::vector<Store::Listed>> Store::List() const {
  STASIS_ASSIGN(auto names, ListDir(directory_));
  std::vector<Listed> jobs;
  for (const std::string& name : names) {
    if (!IsValidId(name)) continue;
    auto job = Load(name);
    if (!job && job.error().code == Code::kNotFound) continue;  // deleted meanwhile
    jobs.push_back({name, std::move(job)});
  }
  return jobs;
}

Status Store::Update(const std::string& id, const std::function<Status(Job&)>& change) const {
  if (!IsValidId(id) || !PathExists(Folder(id))) return NoSuchJob(id);
  STASIS_ASSIGN(UniqueFd lock, LockFile(Folder(id) + kLockFile, LOCK_EX));
  STASIS_ASSIGN(Job job, Load(id));
  STASIS_TRY(change(job));
  return WriteFileDurably(Folder(id) + "/" + kJobFile, EncodeJob(job));
}

Status Store::AddCheckpoint(const std::string& id, const Checkpoint& checkpoint) const {
  return Update(id, [&](Job& job) -> Status {
    job.checkpoints.push_back(checkpoint);
    return {};
  });
}

Status Store::Delete(const std::string& id) const {
  if (!IsValidId(id) || !PathExists(Folder(id))) return NoSuchJob(id);
  auto lock = LockFile(Folder(id) + kLockFile, LOCK_EX | LOCK_NB, O_RDWR | O_CREAT);
  if (!lock && lock.error().code == Code::kAborted) {
    return Fail(Code::kAborted, "job " + id + " is being started or changed", "try again");
  }
  if (!lock) return Fail(std::move(lock).error());
  // A record that cannot be read tells of no process, and must not be there for ever.
  auto job = Load(id);
  if (job && !HasEnded(job->state)) {
    return Fail(Code::kFailedPrecondition,
                "job " + id + " is " + std::string(StateName(job->state)),
                "end it with `stasis kill " + id + "` first");
  }
  if (job && !BackgroundProcesses(*job).empty()) {
    return Fail(Code::kFailedPrecondition,
                "processes that job " + id + " started in the background are still running",
                "end them with `stasis kill " + id + "` first");
  }
  return RemoveFolder(Folder(id));
}

Status Store::MarkDumped(const std::string& id, const process::ProcessId& root,
                         const std::string& image) const {
  return WriteFileDurably(Folder(id) + "/" + shim::kDumpedFile, EncodeDumped({root, image}));
}

Status Store::ClearDumped(const std::string& id) const {
  std::string path = Folder(id) + "/" + shim::kDumpedFile;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path);
  return FsyncPath(Folder(id));
}

std::optional<Job> Store::FindByProcess(process::HostPid pid) const {
  std::vector<process::ProcessId> line;  // the process and those above it
  for (process::HostPid at = pid; at.value > 1;) {
    auto stat = process::ReadStat(at);
    if (!stat || std::find(line.begin(), line.end(), stat->id) != line.end()) break;
    line.push_back(stat->id);
    at = stat->parent;
  }
  auto boot_id = process::BootId();
  auto jobs = List();
  if (!jobs || !boot_id) return std::nullopt;
  // The nearest: a job may have been started by another one.
  for (const process::ProcessId& ancestor : line) {
    for (Listed& listed : *jobs) {
      if (!listed.job) continue;
      const auto& known = listed.job->processes;
      if (!known || known->boot_id != *boot_id) continue;
      const Processes& processes = *known;
      bool is_shim_itself = ancestor == processes.shim && ancestor.pid == pid;
      if (ancestor == processes.root || (ancestor == processes.shim && !is_shim_itself)) {
        return std::move(*listed.job);
      }
    }
  }
  return std::nullopt;
}

Result<Target> Store::ResolveTarget(const std::string& text) const {
  pid_t pid = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  bool all_digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                 [](char c) { return c >= '0' && c <= '9'; });
  if (!all_digits && !IsValidId(text)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "'" + text + "' is neither a job's name nor a process id");
  }
  Target target;
  if (!all_digits) {
    STASIS_ASSIGN(Job job, Load(text));
    if (job.state == State::kRunning && job.processes) target.root = job.processes->root;
    target.job = std::move(job);
    return target;
  }
  if (error != std::errc() || pid == 0) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0, text + " is not a process id");
  }
  if (process::IsThreadOfAnother(pid)) {
    auto credentials = process::ReadCredentials({pid});
    return Fail(
        Code::kInvalidArgument, Domain::kUsage, 0, text + " is a thread, not a process",
        credentials ? "its process is " + process::ToString(credentials->thread_group) : "");
  }
  STASIS_ASSIGN(auto stat, process::ReadStat({pid}));
  target.root = stat.id;
  target.job = FindByProcess({pid});
  return target;
}

}  // namespace stasis::jobs
