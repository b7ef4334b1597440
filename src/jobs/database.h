// The rows of the database of jobs: what was asked for, every checkpoint, and what was seen of a
// job when somebody last looked. Nothing here looks at a process or at a job's folder; whoever
// wants to know what a job is now asks the store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jobs/job.h"
#include "jobs/migrations.h"
#include "jobs/sqlite.h"

namespace stasis::jobs {

// In the folder of the jobs; no job can have this name.
inline constexpr char kDatabaseFile[] = "/.jobs.db";
// Of each kind; of more, the oldest are forgotten. No image goes for it.
inline constexpr int kKeptCheckpoints = 1000;

class Database {
 public:
  // That of the jobs in `folder`. One that is not there is made, under the lock of the store: the
  // caller must not hold it.
  static Result<Database> Open(const std::string& folder,
                               std::span<const Migration> migrations = Migrations());

  // All of `change` is there afterwards, also after a power failure, or nothing.
  template <class Change>
  Status Write(Change change) {
    return sqlite_.Write(std::move(change));
  }
  // For what may as well be written the next time: gives up soon when somebody else writes.
  template <class Change>
  void WriteIfFree(Change change) {
    sqlite_.SetBusyTimeout(kSoonMs);
    (void)sqlite_.Write(std::move(change));
    sqlite_.SetBusyTimeout(Sqlite::kBusyTimeoutMs);
  }

  struct Row {
    std::string id;
    Result<Job> job;  // a damaged row is this job's error and nobody else's
  };
  // By id. Each with the last of its images.
  Result<std::vector<Row>> List() const;
  // With all of its images. Absent: there is none of that id.
  Result<std::optional<Job>> Find(const std::string& id) const;
  // Of both kinds, with their accounts, oldest first.
  Result<std::vector<Checkpoint>> Checkpoints(const std::string& id) const;

  // These belong into a Write. False: the id is taken.
  Result<bool> Insert(const Job& job);
  Status Remove(const std::string& id);
  // argv, cwd, log and agent.
  Status SaveDescription(const Job& job);
  // State, processes and ending, unless another one has written since `job` was read.
  Status SaveSeen(const Job& job);
  Status AddCheckpoint(const std::string& id, const Checkpoint& checkpoint);
  // Of the last dump to this image.
  Status SetAccount(const std::string& id, const std::string& image, const std::string& account);

 private:
  static constexpr int kSoonMs = 200;
  explicit Database(Sqlite sqlite) : sqlite_(std::move(sqlite)) {}
  Result<Job> ReadJob(const Statement& row) const;
  Result<Checkpoint> ReadCheckpoint(const Statement& row, int first) const;

  Sqlite sqlite_;
};

}  // namespace stasis::jobs
