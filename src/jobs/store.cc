#include "jobs/store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "base/clock.h"
#include "base/file.h"
#include "jobs/database.h"
#include "jobs/locks.h"
#include "jobs/record.h"
#include "process/host_name.h"
#include "process/search.h"
#include "shim/shim_protocol.h"

namespace stasis::jobs {
namespace {

constexpr int kMaxReadings = 20;

// Reads a record of the shim. A missing file is not an error, since the shim may not have written
// it yet.
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

bool IsSameSeen(const Job& a, const Job& b) {
  return a.state == b.state && a.processes == b.processes && a.ending == b.ending &&
         a.dumped_image == b.dumped_image;
}

// Returns false for transient states, which would soon be wrong if they were saved, and for what
// only the job's own machine knows.
bool IsWorthRemembering(const Job& job) {
  return job.state != State::kStarting && job.state != State::kEnding &&
         job.state != State::kElsewhere;
}

// Returns true if the processes belong to another machine, not to an earlier boot of this one.
bool IsElsewhere(const Processes& processes) {
  return !processes.host.empty() && processes.host != process::HostName();
}

}  // namespace

tl::unexpected<Error> Store::NoSuchJob(const std::string& id) {
  return Fail(Code::kNotFound, "there is no job " + id,
              ::geteuid() != 0 ? "`stasis ps -a` lists your jobs"
                               : "`stasis ps -a` lists the jobs of root; name a program of another "
                                 "user by its process id, or run the command as that user");
}

// Checks first whether the processes are alive, and reads the records of their end after that: if
// the processes have ended, the records are complete.
Status Store::ReadState(Job& job, const Job& known) const {
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
  // If the tree was restored since, the records belong to its earlier processes and are ignored.
  if (ending && ending->root == processes->root) job.ending = ending->ending;
  if (mark && mark->root == processes->root) job.dumped_image = mark->image;
  // An end is final, so it is kept even after its record is gone.
  if (known.processes == processes && HasEnded(known.state)) {
    if (!job.ending) job.ending = known.ending;
    if (!job.dumped_image && known.state == State::kDumped) job.dumped_image = known.dumped_image;
  }

  if (job.ending) {
    job.state = job.ending->dumped ? State::kDumped : State::kExited;
  } else if (root_lives) {
    job.state = State::kRunning;
  } else if (job.has_shim) {
    job.state = State::kEnding;
  } else if (!this_boot && !job.dumped_image && IsElsewhere(*processes)) {
    job.state = State::kElsewhere;
  } else {
    // Without a shim the exit code was not recorded, but the mark of a dump shows why the job was
    // killed.
    job.state = job.dumped_image ? State::kDumped : State::kLost;
  }
  return {};
}

// `known` is the job as last saved.
Result<Job> Store::LookAt(const Job& known) const {
  const std::string process_file = Folder(known.id) + "/" + shim::kProcessFile;
  for (int reading = 0; reading < kMaxReadings; ++reading) {
    Job job = known;
    job.ending.reset();
    job.dumped_image.reset();
    job.has_shim = false;
    STASIS_ASSIGN(auto written, ReadRecord(process_file, DecodeProcesses));
    if (written) job.processes = written;
    STASIS_TRY(ReadState(job, known));
    STASIS_ASSIGN(auto now, ReadRecord(process_file, DecodeProcesses));
    // If the record has changed, the job was restored meanwhile and its records may be
    // inconsistent; read them again.
    if (now == written) return job;
  }
  return Fail(Code::kAborted, "the job's records keep changing; try again");
}

Result<Job> Store::Known(Database& database, const std::string& id) const {
  if (!IsValidId(id)) return NoSuchJob(id);
  STASIS_ASSIGN(auto known, database.Find(id));
  if (!known) return NoSuchJob(id);
  return std::move(*known);
}

Result<Job> Store::LoadFrom(Database& database, const std::string& id) const {
  STASIS_ASSIGN(const Job known, Known(database, id));
  STASIS_ASSIGN(Job job, Annotate(LookAt(known), "read job " + id));
  if (!IsSameSeen(job, known) && IsWorthRemembering(job)) {
    database.WriteIfFree([&] { return database.SaveSeen(job); });
  }
  return job;
}

Result<Job> Store::Load(const std::string& id) const {
  if (!IsValidId(id)) return NoSuchJob(id);
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  return LoadFrom(database, id);
}

Result<std::vector<Store::Listed>> Store::List() const {
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  STASIS_ASSIGN(auto rows, database.List());
  std::vector<Listed> jobs;
  for (auto& row : rows) jobs.push_back({std::move(row.id), std::move(row.job)});

  std::vector<const Job*> changed;
  for (Listed& listed : jobs) {
    if (!listed.job) continue;
    auto job = Annotate(LookAt(*listed.job), "read job " + listed.id);
    bool news = job && !IsSameSeen(*job, *listed.job) && IsWorthRemembering(*job);
    listed.job = std::move(job);
    if (news) changed.push_back(&*listed.job);
  }
  if (!changed.empty()) {
    database.WriteIfFree([&]() -> Status {
      for (const Job* job : changed) STASIS_TRY(database.SaveSeen(*job));
      return {};
    });
  }
  return jobs;
}

Result<std::vector<Checkpoint>> Store::Checkpoints(const std::string& id) const {
  STASIS_ASSIGN(Database database, Database::Open(directory_));
  STASIS_TRY(Known(database, id));
  return database.Checkpoints(id);
}

Result<std::optional<Job>> Store::FindByProcess(process::HostPid pid) const {
  const std::vector<process::Stat> lineage = process::ReadLineage(pid);
  STASIS_ASSIGN(std::string boot_id, process::BootId());
  auto jobs = List();
  if (!jobs) {
    const Code code = jobs.error().code;
    // Processes must remain accessible by their pids even if the database cannot be read.
    if (code == Code::kDataLoss || code == Code::kUnimplemented) return std::optional<Job>();
    return Fail(std::move(jobs).error());
  }
  // Find the nearest ancestor, because jobs may be nested.
  for (const process::Stat& stat : lineage) {
    const process::ProcessId& ancestor = stat.id;
    for (Listed& listed : *jobs) {
      if (!listed.job) continue;
      const auto& known = listed.job->processes;
      if (!known || known->boot_id != boot_id) continue;
      const Processes& processes = *known;
      bool is_shim_itself = ancestor == processes.shim && ancestor.pid == pid;
      if (ancestor == processes.root || (ancestor == processes.shim && !is_shim_itself)) {
        return std::optional<Job>(std::move(*listed.job));
      }
    }
  }
  return std::optional<Job>();
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
    STASIS_TRY(CheckHere(job));
    if (job.state == State::kRunning && job.processes) target.root = job.processes->root;
    target.job = std::move(job);
    return target;
  }
  if (error != std::errc() || pid == 0) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0, text + " is not a process id");
  }
  STASIS_TRY(process::CheckNotThread({pid}));
  STASIS_ASSIGN(auto stat, process::ReadStat({pid}));
  target.root = stat.id;
  STASIS_ASSIGN(target.job, FindByProcess({pid}));
  return target;
}

}  // namespace stasis::jobs
