// Waits for changes of a job without polling.
#pragma once

#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "jobs/job.h"
#include "jobs/store.h"

namespace stasis::jobs {

// Waits for changes of a job's records, processes or log. Create it before reading the job, so that
// no change is missed.
class Watch {
 public:
  // `log` is a file whose growth is also watched; empty for none.
  static Result<Watch> Start(const Store& store, const std::string& id,
                             const std::string& log = {});

  // Waits until there is such a job, and watches it.
  static Result<Watch> Await(const Store& store, const std::string& id, const Deadline& deadline);

  // Returns after any change, when `extra_fd` (-1: none) is readable, or with kDeadlineExceeded.
  // May wake spuriously.
  Status Wait(int extra_fd, const Deadline& deadline);
  // Reads the job again.
  Result<Job> Look();

 private:
  Watch(const Store& store, std::string id) : store_(store), id_(std::move(id)) {}

  Store store_;
  std::string id_;
  UniqueFd inotify_;
  process::ProcessId watched_root_;
  UniqueFd root_;  // pidfds; closed once the process has ended
  UniqueFd shim_;
};

// Waits until the job has ended in any way, and returns it.
Result<Job> AwaitEnd(const Store& store, const std::string& id, const Deadline& deadline);

}  // namespace stasis::jobs
