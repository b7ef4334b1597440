// A plan is the list of named phases that an operation runs. It reads like the tables in
// docs/life-of-a-checkpoint.md. The runner times each phase, writes it to the journal before it
// begins, and, when one fails, undoes the phases that had begun, in reverse order.
//
// The runner calls the undo of every phase that had begun, including the failed one. An undo must
// therefore work whether none, some or all of its phase was done. It restores the state that was
// recorded before the first phase. After the commit nothing is undone: the handler of
// OnFailureAfterCommit completes the operation as far as possible and describes the remaining
// state.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "plan/account.h"

namespace stasis::plan {

class Journal;
class PhaseScope;

struct Phase {
  std::string name;
  std::chrono::milliseconds timeout{60000};
  // RunOptions::timeout does not replace this phase's timeout.
  bool keeps_timeout = false;
  std::function<Status(PhaseScope&)> run = {};
  std::function<Status()> undo = {};  // empty: the phase changes nothing
  // Phases of one group have the same undo. If the undo fails, it is not repeated for the other
  // phases of the group, because it would take as long and fail again. Empty: no group.
  std::string undo_group = {};
  // The operation is committed when this phase has succeeded.
  bool commits = false;
  // If this phase fails, the plan continues until the commit and then fails with the error of this
  // phase. If the commit is not reached, the plan is undone as usual.
  bool fails_late = false;
  // Phases that `run` runs with PhaseScope::RunNested, listed so that PhaseNames() finds them.
  std::vector<Phase> nested = {};
};

// The interface of a running phase to the runner. Safe to call from any thread of the phase.
class PhaseScope {
 public:
  virtual ~PhaseScope() = default;
  virtual const Deadline& deadline() const = 0;
  virtual void SetBytes(uint64_t bytes) = 0;
  virtual void ReportBytes(uint64_t done, uint64_t total) = 0;
  // Returns the reports of the phases that have ended.
  virtual std::vector<PhaseReport> Reports() const = 0;
  // Runs the nested phase of that name in this thread.
  virtual Status RunNested(const std::string& name) = 0;
  // Waits for the end of a phase that runs in parallel with this one, or ran before it. Returns
  // kCancelled if any phase fails before that, and kInternal if the plan has no such phase.
  virtual Status Await(const std::string& name) = 0;
  // Waits until `ready` returns true. `ready` is called again whenever a phase calls Changed() or
  // ends. It may be called by other threads, and must not call the scope. The wait has no deadline,
  // because the other phases have deadlines. Returns kCancelled if a phase has failed, and
  // kInternal if all other phases have ended or are waiting too, so that nothing can change any
  // more.
  virtual Status WaitUntil(const std::function<bool()>& ready) = 0;
  virtual void Changed() = 0;
  // Returns true if a parallel phase has failed, so that everything will be undone.
  virtual bool Abandoned() const = 0;
  // Returns true if the user has cancelled. For phases that only wait; the runner itself checks
  // between phases.
  virtual bool Cancelled() const = 0;
};

// The error of a phase that stops because a parallel phase has failed with `cause`. It never
// becomes the error of the plan, but others may see it, such as a CRIU that the phase answers.
inline Error StoppedByOther(const std::string& cause = "") {
  Error error{Code::kCancelled};
  error.message = "cancelled because a parallel phase failed";
  if (!cause.empty()) error.message += ": " + cause;
  return error;
}

// Returns the error of an interrupted phase: StoppedByOther() if a parallel phase has failed, else
// `error`.
inline Error WhyStopped(const PhaseScope& scope, Error error) {
  return scope.Abandoned() ? StoppedByOther() : std::move(error);
}

// The error of work that was cancelled at its deadline.
inline Error TookTooLong() {
  Error error{Code::kDeadlineExceeded};
  error.message = "it took too long";
  return error;
}

// Returns one phase that runs `phases` one after another, and stops when a phase that runs in
// parallel has failed.
Phase InOrder(std::string name, std::vector<Phase> phases);

class Plan {
 public:
  explicit Plan(std::string verb) : verb_(std::move(verb)) {}

  void Add(Phase phase) { steps_.push_back({std::move(phase)}); }
  // Adds phases that run at the same time, each on its own thread. The next step begins when all
  // have ended. If several fail, the error is the first one that is not kCancelled.
  void AddParallel(std::vector<Phase> phases) { steps_.push_back(std::move(phases)); }
  // Sets the handler of failures after the commit. It returns a sentence that describes the
  // remaining state.
  void OnFailureAfterCommit(std::function<std::string()> handler) {
    on_failure_after_commit_ = std::move(handler);
  }

  // Names in the order in which the phases begin, nested ones after their parent.
  std::vector<std::string> PhaseNames() const;

  struct RunOptions {
    Journal* journal = nullptr;  // null only in tests
    Progress progress;
    // Called between phases before the commit; returning true undoes everything.
    std::function<bool()> cancelled;
    // If positive, replaces the timeout of every phase without keeps_timeout.
    std::chrono::milliseconds timeout{0};
  };
  // Returns the account of a success, or an error. Everything was undone unless the error has
  // `not_undone`; then its hint describes the remaining state.
  Result<Account> Run(const RunOptions& options);
  // After a failed Run: returns true if it failed after the commit.
  bool committed() const { return committed_; }

 private:
  std::string verb_;
  std::vector<std::vector<Phase>> steps_;
  std::function<std::string()> on_failure_after_commit_;
  bool committed_ = false;
};

}  // namespace stasis::plan
