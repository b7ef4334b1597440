// Waiting for what happens to a job, without asking again and again.
#pragma once

#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "jobs/job.h"
#include "jobs/store.h"

namespace stasis::jobs {

// Wakes its owner when a job's records, its processes or its log change. Make it first and look at
// the job afterwards: then no change is missed.
class Watch {
 public:
  // `log`: a file whose growth is watched too, empty for none.
  static Result<Watch> Start(const Store& store, const std::string& id,
                             const std::string& log = {});

  // Returns after any change, or when `extra_fd` (-1: none) can be read. kDeadlineExceeded.
  Status Wait(int extra_fd, const Deadline& deadline);
  // Reads the job anew.
  Result<Job> Look();

 private:
  Watch(const Store& store, std::string id) : store_(store), id_(std::move(id)) {}

  Store store_;
  std::string id_;
  UniqueFd inotify_;
  process::ProcessId watched_root_;
  UniqueFd root_;  // pidfds; given up once they have told of the end
  UniqueFd shim_;
};

// Waits until the job has ended, one way or another, and returns it.
Result<Job> AwaitEnd(const Store& store, const std::string& id, const Deadline& deadline);

}  // namespace stasis::jobs
