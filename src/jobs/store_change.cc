// Creation, changes and removal of jobs. store.cc reads them.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.h"
#include "base/file.h"
#include "jobs/database.h"
#include "jobs/locks.h"
#include "jobs/record.h"
#include "jobs/store.h"
#include "process/end.h"
#include "shim/shim_protocol.h"

namespace stasis::jobs {
namespace {

constexpr int kMaxGenerated = 100;
constexpr std::chrono::seconds kBackgroundTime{2};

// Removes a job from the database and hides its directory. If one fails, the other is undone, so
// that no reader sees half a job. A kill between the two leaves a row without a directory, which
// can be removed again.
Status RemoveJob(Database& database, const std::string& folder, const std::string& id) {
  const std::string parent = folder.substr(0, folder.rfind('/') + 1);
  std::string hidden = parent + ".old-XXXXXX";
  if (::mkdtemp(hidden.data()) == nullptr) return FailErrno(errno, "make " + hidden);
  bool moved = false;
  Status removed = database.Write([&]() -> Status {
    moved = ::rename(folder.c_str(), hidden.c_str()) == 0;
    if (!moved && errno != ENOENT) return FailErrno(errno, "remove " + folder);
    return database.Remove(id);
  });
  if (!removed && moved && ::rename(hidden.c_str(), folder.c_str()) == 0) return removed;
  Status swept = RemoveTree(hidden);
  return removed ? swept : removed;
}

// Waits until no process of the job is left. The root has ended, and other processes that got the
// same signal may need a moment longer.
Status AwaitBackground(const Job& job) {
  const Deadline deadline = Deadline::In(kBackgroundTime);
  std::vector<process::HostPid> left = BackgroundProcesses(job);
  while (!left.empty() && !deadline.passed()) {
    for (process::HostPid pid : left) {
      auto stat = process::ReadStat(pid);
      if (stat) (void)process::WaitForEnd(stat->id, deadline);
    }
    left = BackgroundProcesses(job);
  }
  if (left.empty()) return {};
  auto stat = process::ReadStat(left.front());
  std::string who = "process " + ToString(left.front());
  if (stat) who += " (" + stat->comm + ")";
  if (left.size() > 1) who += " and " + std::to_string(left.size() - 1) + " more";
  return Fail(Code::kFailedPrecondition,
              who + ", which job " + job.id + " started in the background, still run" +
                  (left.size() == 1 ? "s" : ""),
              "end its remaining processes with `stasis kill " + job.id + "` first");
}

// Rejects a description that could not be read back from the database.
Status CheckDescription(const Job& job) {
  auto invalid = [](const std::string& why) {
    return Fail(Code::kInvalidArgument, "the job cannot be created: " + why);
  };
  size_t bytes = 0;
  for (const std::string& argument : job.argv) {
    if (argument.find('\0') != argument.npos) return invalid("an argument has a zero byte");
    bytes += argument.size() + 1;
  }
  if (job.argv.empty()) return invalid("it has no command");
  if (job.argv.size() > kMaxArguments || bytes > kMaxArgumentListBytes) {
    return Fail(Code::kResourceExhausted, "the list of arguments is too long");
  }
  for (const std::string& path : {job.cwd, job.log}) {
    if (!path.starts_with('/') || path.size() > kMaxPathBytes || path.find('\0') != path.npos) {
      return invalid("a path is not absolute, too long, or has a zero byte");
    }
  }
  return {};
}

tl::unexpected<Error> Busy(const std::string& id) {
  return Fail(Code::kAborted,
              "job " + id + " is busy: another command is starting, restoring or deleting it",
              "try again when that command has ended; `stasis ps -a` shows the result");
}

}  // namespace

Status Claim::Discard() {
  if (!is_new_) {
    lock_.Reset();
    return {};
  }
  STASIS_ASSIGN(Database database, Database::Open(folder_.substr(0, folder_.rfind('/'))));
  Status status = RemoveJob(database, folder_, job_.id);
  lock_.Reset();
  return status;
}

// Returns true if the job never ran and its creator was killed.
bool Store::IsAbandoned(const std::string& id) const {
  std::string folder = Folder(id);
  if (PathExists(folder + "/" + shim::kProcessFile)) return false;
  if (!LockFile(folder + kLockFile, LOCK_EX | LOCK_NB)) return false;
  auto shim = LockFile(folder + "/" + shim::kShimLock, LOCK_EX | LOCK_NB);
  if (!shim && shim.error().code != Code::kNotFound) return false;
  return !PathExists(folder + "/" + shim::kProcessFile);
}

// Removes leftovers of killed creators and removers. The store's lock excludes active ones.
void Store::Sweep(Database& database) const {
  auto names = ListDir(directory_);
  if (!names) return;
  for (const std::string& name : *names) {
    if (name.starts_with(".new-") || name.starts_with(".old-")) {
      (void)RemoveTree(directory_ + "/" + name);
    } else if (IsValidId(name) && IsAbandoned(name)) {
      (void)RemoveJob(database, Folder(name), name);
    }
  }
}

Result<Claim> Store::Create(const NewJob& wanted) const {
  if (!wanted.id.empty() && !IsValidId(wanted.id)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0, "'" + wanted.id + "' cannot name a job",
                "a name starts with a lower-case letter, has only lower-case letters, digits, '.', "
                "'_' and '-', and at most 64 characters");
  }
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  STASIS_ASSIGN(UniqueFd store_lock, LockStore(directory_));
  Sweep(database);
  STASIS_TRY(CheckLimit(database, wanted.most_jobs));
  if (wanted.check) STASIS_TRY(wanted.check());

  Claim claim;
  claim.is_new_ = true;
  std::string hidden = directory_ + "/.new-XXXXXX";
  if (::mkdtemp(hidden.data()) == nullptr) return FailErrno(errno, "make " + hidden);
  Job& job = claim.job_;
  job.argv = wanted.argv;
  job.cwd = wanted.cwd;
  job.agent = wanted.agent;
  job.share = wanted.share;
  job.uid = ::getuid();
  job.gid = ::getgid();
  job.created_ms = job.changed_ms = NowMs();
  auto lock = LockFile(hidden + kLockFile, LOCK_EX, O_RDWR | O_CREAT);
  Status status = lock ? Status() : Status(Fail(lock.error()));
  if (status && wanted.adopted) {
    job.processes = wanted.adopted;
    job.state = State::kRunning;
    status = WriteFileDurably(hidden + "/" + shim::kProcessFile, EncodeProcesses(*wanted.adopted));
  }
  bool made = false;
  for (int tries = 0; status && !made && tries < kMaxGenerated; ++tries) {
    job.id = wanted.id.empty() ? GenerateId() : wanted.id;
    claim.folder_ = Folder(job.id);
    job.log = wanted.log.empty() ? OwnLog(job.id) : wanted.log;
    status = CheckDescription(job);
    if (!status) break;
    // The row decides which of two concurrent creators gets the name. The directory is created
    // before the row is committed, so that every row has a directory. A non-empty directory is
    // never replaced.
    bool moved = false;
    status = database.Write([&]() -> Status {
      STASIS_ASSIGN(made, database.Insert(job));
      if (!made) return {};
      moved = ::rename(hidden.c_str(), claim.folder_.c_str()) == 0;
      if (moved) return FsyncPath(directory_);
      made = false;
      if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) {
        return FailErrno(errno, "create " + claim.folder_);
      }
      return database.Remove(job.id);
    });
    if (!status && moved) (void)::rename(claim.folder_.c_str(), hidden.c_str());
    if (status && !made && !wanted.id.empty()) status = TakenName(wanted.id, database);
  }
  if (status && made) {
    claim.lock_ = std::move(*lock);
    return claim;
  }
  (void)RemoveTree(hidden);
  if (status)
    return Fail(Code::kResourceExhausted, "no unused name was found", "name the job with --job");
  return Fail(std::move(status).error());
}

Result<UniqueFd> Store::LockJob(const std::string& id) const {
  auto lock = LockFile(Folder(id) + kLockFile, LOCK_EX | LOCK_NB, O_RDWR | O_CREAT);
  if (lock || lock.error().code != Code::kAborted) return lock;
  return Busy(id);
}

Result<Claim> Store::Hold(const std::string& id) const {
  STASIS_TRY(Load(id));
  Claim claim;
  claim.folder_ = Folder(id);
  STASIS_ASSIGN(claim.lock_, LockJob(id));
  // Read the job again, because it is protected from changes only now.
  STASIS_ASSIGN(claim.job_, Load(id));
  return claim;
}

Status Store::CheckLimit(Database& database, uint64_t most) const {
  if (most == 0) return {};
  STASIS_ASSIGN(auto rows, database.List());
  if (rows.size() < most) return {};
  return Fail(Code::kResourceExhausted,
              "you have " + std::to_string(rows.size()) + " jobs, and the limit is " +
                  std::to_string(most) + " (limits.jobs)",
              "`stasis ps -a` lists them, `stasis delete JOB` deletes one that has ended");
}

Status Store::TakenName(const std::string& id, Database& database) const {
  auto other = LoadFrom(database, id);
  bool ended = other && HasEnded(other->state);
  return Fail(Code::kAlreadyExists,
              "there is a job " + id + (ended ? " already, which has ended" : " already"),
              ended ? "`stasis delete " + id + "` frees the name" : "choose another name");
}

Status Store::Update(const std::string& id, const std::function<Status(Job&)>& change) const {
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  STASIS_TRY(Known(database, id));
  return database.Write([&]() -> Status {
    STASIS_ASSIGN(auto job, database.Find(id));
    if (!job) return NoSuchJob(id);
    STASIS_TRY(change(*job));
    return database.SaveDescription(*job);
  });
}

Status Store::AddCheckpoint(const std::string& id, const Checkpoint& checkpoint) const {
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  STASIS_TRY(Known(database, id));
  return database.Write([&]() -> Status {
    STASIS_ASSIGN(auto job, database.Find(id));
    if (!job) return NoSuchJob(id);
    return database.AddCheckpoint(id, checkpoint);
  });
}

Status Store::SetAccount(const std::string& id, const std::string& image,
                         const std::string& account) const {
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  return database.Write([&] { return database.SetAccount(id, image, account); });
}

Status Store::SetCopy(const std::string& image, const ImageCopy& copy) const {
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  return database.Write([&] { return database.SetCopy(image, copy); });
}

Status Store::Delete(const std::string& id) const {
  if (!IsValidId(id)) return NoSuchJob(id);
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  // A job with an unreadable record must be removable too.
  auto job = LoadFrom(database, id);
  if (!job && job.error().code == Code::kNotFound && !PathExists(Folder(id))) return NoSuchJob(id);
  UniqueFd held;
  if (PathExists(Folder(id))) {
    STASIS_ASSIGN(held, LockJob(id));
    job = LoadFrom(database, id);
    // The database was replaced, but the shim's files still show whether the program is running.
    if (!job && job.error().code == Code::kNotFound) {
      Job unknown;
      unknown.id = id;
      job = LookAt(unknown);
    }
  }
  // The start or restore was killed. The job looks as if it was starting only because this process
  // holds the lock.
  if (job && job->state == State::kStarting && held) job->state = State::kLost;
  if (job) STASIS_TRY(CheckHere(*job));
  if (job && !HasEnded(job->state)) {
    return Fail(Code::kFailedPrecondition,
                "job " + id + " is " + std::string(StateName(job->state)),
                "end it with `stasis kill " + id + "` first");
  }
  // A killed restore leaves a shim that does not belong to the job yet and is killing the restored
  // processes.
  UniqueFd shim;
  const std::string shim_lock = Folder(id) + "/" + shim::kShimLock;
  if (job && !job->has_shim && PathExists(shim_lock)) {
    auto lock = LockFile(shim_lock, LOCK_EX | LOCK_NB);
    if (!lock && lock.error().code == Code::kAborted) return Busy(id);
    if (lock) shim = std::move(*lock);
  }
  if (job) STASIS_TRY(AwaitBackground(*job));
  return RemoveJob(database, Folder(id), id);
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

Status Store::NoteLost(const std::string& id) const {
  STASIS_ASSIGN(const Claim claim, Hold(id));
  const Job& job = claim.job();
  if (job.state != State::kElsewhere || !job.processes) {
    return Fail(
        Code::kFailedPrecondition,
        "job " + id + " is " + std::string(StateName(job.state)) + ", not on another machine",
        "`stasis kill " + id + "` ends a job of this machine");
  }
  // A living shim keeps this lock. Servers of shared folders let go of the locks of a machine that
  // has failed.
  const std::string shim_lock = claim.folder() + "/" + shim::kShimLock;
  const auto shim = LockFile(shim_lock, LOCK_EX | LOCK_NB);
  if (!shim && shim.error().code == Code::kAborted) {
    const std::string& host = job.processes->host;
    return Fail(Code::kFailedPrecondition,
                "job " + id + " still runs on " + host + ": " + shim_lock + " is locked",
                "end it there. If " + host + " has failed, try again in a few minutes");
  }
  // Without a host it is a job of an earlier boot. The machine that has its processes still knows
  // them by its boot id.
  Processes processes = *job.processes;
  processes.host.clear();
  return WriteFileDurably(claim.folder() + "/" + shim::kProcessFile, EncodeProcesses(processes));
}

}  // namespace stasis::jobs
