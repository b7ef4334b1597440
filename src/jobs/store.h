// Where jobs are kept: a folder each, below Paths::jobs(). There is no daemon and no index; any
// number of processes may use the same store.
//
//   ID/job.json       what was asked for, and the checkpoints; replaced whole, under ID/lock
//   ID/lock           flock: one writer of job.json at a time; held by the creator until the job
//   runs ID/log            the job's output, unless it was sent elsewhere ID/…              what
//   the shim writes: see shim/shim_protocol.h .lock  .new-*  .old-*    a job that is being made or
//   removed; never seen as one
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "jobs/job.h"

namespace stasis::jobs {

struct NewJob {
  std::string id;  // empty: one is made up
  std::vector<std::string> argv;
  std::string cwd;
  std::string log;    // absolute; empty: in the job's folder
  std::string agent;  // see Job
};

// A job whose creator still holds it: nobody else changes or removes it.
class Claim {
 public:
  const Job& job() const { return job_; }
  const std::string& folder() const { return folder_; }
  // Takes the job away again, for a start that failed.
  Status Discard();

 private:
  friend class Store;
  Job job_;
  std::string folder_;
  UniqueFd lock_;
};

struct Target {
  std::optional<Job> job;
  // The process that was named, or the job's root; pid 0 when the job does not run.
  process::ProcessId root;
};

class Store {
 public:
  // `directory` exists: Paths::jobs().
  explicit Store(std::string directory) : directory_(std::move(directory)) {}

  // kAlreadyExists: there is a job of that name, running or ended.
  Result<Claim> Create(const NewJob& job) const;
  // kNotFound: "there is no job NAME".
  Result<Job> Load(const std::string& id) const;
  struct Listed {
    std::string id;
    Result<Job> job;  // a damaged record is this job's error and nobody else's
  };
  Result<std::vector<Listed>> List() const;
  // Changes job.json. `change` sees the job as it is and may refuse.
  Status Update(const std::string& id, const std::function<Status(Job&)>& change) const;
  Status AddCheckpoint(const std::string& id, const Checkpoint& checkpoint) const;
  // Removes the job and its log, not its images. kFailedPrecondition while a process of it is left.
  Status Delete(const std::string& id) const;

  // The tree below `root` is in a complete image and is about to be killed for it. Written before
  // the kill; cleared when the kill does not happen after all.
  Status MarkDumped(const std::string& id, const process::ProcessId& root,
                    const std::string& image) const;
  Status ClearDumped(const std::string& id) const;

  // A job's name or a process id, as the user typed it. A process that belongs to a running job
  // (its root, what is below it, and what its shim has adopted) comes with that job. Wrong usage:
  // neither a name nor a number, or a thread's id. kNotFound: no such job or process.
  Result<Target> ResolveTarget(const std::string& text) const;

  std::string Folder(const std::string& id) const { return directory_ + "/" + id; }

 private:
  Result<UniqueFd> LockStore() const;
  void Sweep() const;
  bool IsAbandoned(const std::string& id) const;
  Result<Job> LoadFolder(const std::string& id) const;
  Status ReadState(Job& job) const;
  std::optional<Job> FindByProcess(process::HostPid pid) const;

  std::string directory_;
};

}  // namespace stasis::jobs
