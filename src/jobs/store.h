// The store of jobs below Paths::jobs(): a database of descriptions and history, and a directory
// for each job. No daemon is needed; any number of processes may use the same store.
//
//   .jobs.db      descriptions, checkpoints, last known states: see database.h
//   ID/lock       flock: held by the creator until the job runs, during a restore, and during a
//                 delete
//   ID/log        the job's output, unless redirected
//   ID/…          files of the shim: see shim/shim_protocol.h
//   .lock         flock: one creator at a time, of jobs or of the database
//   .new-* .old-* directories being created or removed; never treated as jobs
//
// The current state of a job is read from the shim's files and /proc each time, and then saved in
// the database. The saved state is used only if those files and /proc do not determine the state.
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
  std::string id;  // empty: generate one
  std::vector<std::string> argv;
  std::string cwd;
  std::string log;         // absolute path; empty: in the job's directory
  std::string agent;       // see Job
  std::string share;       // see Job
  uint64_t most_jobs = 0;  // limit on the number of jobs including this one (limits.jobs); 0: none
  // Processes of a running program without a shim: see manage.h.
  std::optional<Processes> adopted = {};
  // May reject the job; called under the store's lock.
  std::function<Status()> check = {};
};

// Exclusive ownership of a job: no other process can restore or remove it.
class Claim {
 public:
  const Job& job() const { return job_; }
  const std::string& folder() const { return folder_; }
  // The job was created by Create.
  bool is_new() const { return is_new_; }
  // Removes a new job, after a failed start. Releases an existing job.
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
  // The given process, or the job's root. Its pid is 0 if the job is not running.
  process::ProcessId root;
};

class Database;

class Store {
 public:
  // `directory` must exist: Paths::jobs().
  explicit Store(std::string directory) : directory_(std::move(directory)) {}

  // Returns kAlreadyExists if a job of that name exists, running or ended.
  Result<Claim> Create(const NewJob& job) const;
  // Claims an existing job. Returns kAborted if another command is starting, restoring or deleting
  // it.
  Result<Claim> Hold(const std::string& id) const;
  // Returns kNotFound, "there is no job NAME", if it does not exist.
  Result<Job> Load(const std::string& id) const;
  struct Listed {
    std::string id;
    Result<Job> job;  // an error of this job only, if its record is damaged
  };
  // Returns all jobs, each with only its last image.
  Result<std::vector<Listed>> List() const;
  // Changes argv, cwd, log or agent. `change` gets the job as last seen and may reject the change.
  Status Update(const std::string& id, const std::function<Status(Job&)>& change) const;
  Status AddCheckpoint(const std::string& id, const Checkpoint& checkpoint) const;
  // Saves the result of the dump to this image, as JSON.
  Status SetAccount(const std::string& id, const std::string& image,
                    const std::string& account) const;
  // Records that the image of a job's last dump to this path was copied to a repository. Does
  // nothing if no job has such a dump.
  Status SetCopy(const std::string& image, const ImageCopy& copy) const;
  // Returns dumps and suspends with their accounts, oldest first.
  Result<std::vector<Checkpoint>> Checkpoints(const std::string& id) const;
  // Removes the job and its log, but not its images. Returns kFailedPrecondition while a process of
  // the job is left.
  Status Delete(const std::string& id) const;

  // Records that the tree below `root` is in a complete image and is about to be killed. Call
  // before the kill, and clear the mark if the kill does not happen.
  Status MarkDumped(const std::string& id, const process::ProcessId& root,
                    const std::string& image) const;
  Status ClearDumped(const std::string& id) const;
  // Records that the processes of a job on another machine have ended: it is lost. Returns
  // kFailedPrecondition for a job of this machine, whose processes can be looked at, and if its
  // shim is known to be alive.
  Status NoteLost(const std::string& id) const;

  // Returns the job that a process belongs to: it is the root, below the root, or below the shim.
  // If jobs are nested, returns the innermost one.
  Result<std::optional<Job>> FindByProcess(process::HostPid pid) const;
  // Resolves a job name or pid given by the user. A process of a running job (the root, its
  // descendants, and processes adopted by its shim) is returned with that job. Returns a usage
  // error for other texts and thread ids, kNotFound if there is no such job or process.
  Result<Target> ResolveTarget(const std::string& text) const;

  // Returns the path of a job's directory.
  std::string Folder(const std::string& id) const { return directory_ + "/" + id; }
  // Returns the path of a job's log if NewJob::log was empty.
  std::string OwnLog(const std::string& id) const { return Folder(id) + shim::kOwnLog; }

 private:
  static tl::unexpected<Error> NoSuchJob(const std::string& id);
  void Sweep(Database& database) const;
  Status CheckLimit(Database& database, uint64_t most) const;
  Status TakenName(const std::string& id, Database& database) const;
  bool IsAbandoned(const std::string& id) const;
  Result<Job> LoadFrom(Database& database, const std::string& id) const;
  Result<Job> Known(Database& database, const std::string& id) const;
  Result<Job> LookAt(const Job& known) const;
  Status ReadState(Job& job, const Job& known) const;
  Result<UniqueFd> LockJob(const std::string& id) const;

  std::string directory_;
};

}  // namespace stasis::jobs
