// Where jobs are kept: a database for what is to be remembered of them, and a folder each for what
// they are, below Paths::jobs(). There is no daemon; any number of processes may use the same
// store.
//
//   .jobs.db      what was asked for, every checkpoint, what was seen last: see database.h
//   ID/job.json   what was asked for, once more: written at the start, read when the database does
//                 not know the job
//   ID/lock       flock: held by the creator until the job runs, by a restore until it has, by a
//                 delete
//   ID/log        the job's output, unless it was sent elsewhere
//   ID/…          what the shim writes: see shim/shim_protocol.h
//   .lock         flock: one creator at a time, of jobs or of the database
//   .new-* .old-* what is being made or removed; never seen as a job
//
// What a job is now is read from the shim's files and from /proc, every time. The database takes it
// over, and what it remembers counts only where those say nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "jobs/job.h"
#include "shim/shim_protocol.h"

namespace stasis::jobs {

struct NewJob {
  std::string id;  // empty: one is made up
  std::vector<std::string> argv;
  std::string cwd;
  std::string log;         // absolute; empty: in the job's folder
  std::string agent;       // see Job
  uint64_t most_jobs = 0;  // there may be, this one counted (limits.jobs); 0: any number
  // Of a program that runs already and has no shim: see manage.h.
  std::optional<Processes> adopted = {};
  // May refuse the job; asked while nobody else makes one.
  std::function<Status()> check = {};
};

// A job that somebody holds: nobody else restores or removes it.
class Claim {
 public:
  const Job& job() const { return job_; }
  const std::string& folder() const { return folder_; }
  // Create has made it.
  bool is_new() const { return is_new_; }
  // Takes a new job away again, for a start that failed; lets go of one that was there before.
  Status Discard();

 private:
  friend class Store;
  Job job_;
  std::string folder_;
  UniqueFd lock_;
  bool is_new_ = false;
};

struct Target {
  std::optional<Job> job;
  // The process that was named, or the job's root; pid 0 when the job does not run.
  process::ProcessId root;
};

class Database;

class Store {
 public:
  // `directory` exists: Paths::jobs().
  explicit Store(std::string directory) : directory_(std::move(directory)) {}

  // kAlreadyExists: there is a job of that name, running or ended.
  Result<Claim> Create(const NewJob& job) const;
  // Takes hold of a job that is there, as it is then. kAborted: another command holds it, to start,
  // restore or delete it.
  Result<Claim> Hold(const std::string& id) const;
  // kNotFound: "there is no job NAME".
  Result<Job> Load(const std::string& id) const;
  struct Listed {
    std::string id;
    Result<Job> job;  // a damaged record is this job's error and nobody else's
  };
  // Each with the last of its images only.
  Result<std::vector<Listed>> List() const;
  // Changes argv, cwd, log or agent. `change` sees the job as it was last seen and may refuse.
  Status Update(const std::string& id, const std::function<Status(Job&)>& change) const;
  Status AddCheckpoint(const std::string& id, const Checkpoint& checkpoint) const;
  // What the dump to this image ended with, as JSON.
  Status SetAccount(const std::string& id, const std::string& image,
                    const std::string& account) const;
  // Oldest first, with their accounts; suspends too.
  Result<std::vector<Checkpoint>> Checkpoints(const std::string& id) const;
  // Removes the job and its log, not its images. kFailedPrecondition while a process of it is left.
  Status Delete(const std::string& id) const;

  // The tree below `root` is in a complete image and is about to be killed for it. Written before
  // the kill; cleared when the kill does not happen after all.
  Status MarkDumped(const std::string& id, const process::ProcessId& root,
                    const std::string& image) const;
  Status ClearDumped(const std::string& id) const;

  // The job that a process belongs to: as its root or below it, or below its shim. The nearest,
  // where one job was started by another.
  Result<std::optional<Job>> FindByProcess(process::HostPid pid) const;
  // A job's name or a process id, as the user typed it. A process that belongs to a running job
  // (its root, what is below it, and what its shim has adopted) comes with that job. Wrong usage:
  // neither a name nor a number, or a thread's id. kNotFound: no such job or process.
  Result<Target> ResolveTarget(const std::string& text) const;

  std::string Folder(const std::string& id) const { return directory_ + "/" + id; }
  // Where the output of a job goes that was sent nowhere else.
  std::string OwnLog(const std::string& id) const { return Folder(id) + shim::kOwnLog; }

 private:
  static tl::unexpected<Error> NoSuchJob(const std::string& id);
  void Sweep(Database& database) const;
  Status CheckLimit(Database& database, uint64_t most) const;
  Status TakenName(const std::string& id, Database& database) const;
  bool IsAbandoned(const std::string& id) const;
  Result<Job> LoadFrom(Database& database, const std::string& id) const;
  Result<Job> ReadJobFile(const std::string& id) const;
  Status TakeOver(Database& database, const std::vector<std::string>& ids,
                  std::vector<Listed>& taken) const;
  Result<Job> Known(Database& database, const std::string& id) const;
  Result<Job> LookAt(const Job& known) const;
  Status ReadState(Job& job, const Job& known) const;
  Result<UniqueFd> LockJob(const std::string& id) const;

  std::string directory_;
};

}  // namespace stasis::jobs
