// The rows of the job database: descriptions, checkpoints, and the state of each job when it
// was last read. This class reads neither processes nor a job's directory; use the store for a
// job's current state.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jobs/job.h"
#include "jobs/migrations.h"
#include "jobs/sqlite.h"

namespace stasis::jobs {

// The database file in the directory of jobs. Its name is not a valid job name.
inline constexpr char kDatabaseFile[] = "/.jobs.db";
// The number of checkpoints kept for each job and kind; older entries are dropped. Images are not
// deleted.
inline constexpr int kKeptCheckpoints = 1000;

class Database {
 public:
  // Opens the database in `folder`. Creates a missing one under the store's lock, which the caller
  // must not hold.
  static Result<Database> Open(const std::string& folder,
                               std::span<const Migration> migrations = Migrations());

  // Runs `change` in a durable transaction: either all of its writes are stored or none.
  template <class Change>
  Status Write(Change change) {
    return sqlite_.Write(std::move(change));
  }
  // Like Write, for data that can be written later instead: gives up after kSoonMs if another
  // writer is active.
  template <class Change>
  void WriteIfFree(Change change) {
    sqlite_.SetBusyTimeout(kSoonMs);
    (void)sqlite_.Write(std::move(change));
    sqlite_.SetBusyTimeout(Sqlite::kBusyTimeoutMs);
  }

  struct Row {
    std::string id;
    Result<Job> job;  // an error of this row only, if it is damaged
  };
  // Returns all jobs by id, each with only its last image.
  Result<std::vector<Row>> List() const;
  // Returns the job with all of its images, or no value if there is no such job.
  Result<std::optional<Job>> Find(const std::string& id) const;
  // Returns checkpoints of both kinds with their accounts, oldest first.
  Result<std::vector<Checkpoint>> Checkpoints(const std::string& id) const;

  // Call the following inside Write. Insert returns false if the id is taken.
  Result<bool> Insert(const Job& job);
  Status Remove(const std::string& id);
  // Saves argv, cwd, log and agent.
  Status SaveDescription(const Job& job);
  // Saves state, processes and ending, unless another process has saved them since `job` was read.
  Status SaveSeen(const Job& job);
  Status AddCheckpoint(const std::string& id, const Checkpoint& checkpoint);
  // Sets the account of the last dump to this image.
  Status SetAccount(const std::string& id, const std::string& image, const std::string& account);
  // Records that the image was copied to a repository, in the last dump of any job to this image.
  // Does nothing if there is no such dump.
  Status SetCopy(const std::string& image, const ImageCopy& copy);

 private:
  static constexpr int kSoonMs = 200;
  explicit Database(Sqlite sqlite) : sqlite_(std::move(sqlite)) {}
  Result<Job> ReadJob(const Statement& row) const;
  Result<Checkpoint> ReadCheckpoint(const Statement& row, int first) const;
  Result<std::vector<Checkpoint>> ReadCheckpoints(Statement rows) const;

  Sqlite sqlite_;
};

}  // namespace stasis::jobs
