// A plan is what an operation does, as a list of named phases that reads like the diagram in
// docs/life-of-a-checkpoint.md. The runner times each phase, writes its intent to the journal
// before it begins, and, when one fails, undoes those that had begun, last first.
//
// The rule of Undo: it is called for every phase that had begun, the failed one included, so it
// must bear that nothing, a part or all of its phase was done. It returns things to the state that
// was *recorded before the first phase*. After the commit point nothing is undone: `settle` brings
// things to rest and says what is left.
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
  std::function<Status(PhaseScope&)> run;
  std::function<Status()> undo;  // empty: the phase changes nothing
  // Phases of one group are undone by one and the same step: when it has failed, it is not tried
  // again for the others, which would take as long and say the same. Empty: none.
  std::string undo_group;
  // The operation is committed when this phase has succeeded.
  bool commits = false;
  // Its failure waits for the commit: what else is to be done is done, and then the plan fails with
  // it. Without a commit it is undone like any other.
  bool fails_late = false;
  // Phases that `run` itself calls by PhaseScope::RunNested, listed here so that whoever walks a
  // plan sees them.
  std::vector<Phase> nested;
};

// What a running phase may ask of its runner.
class PhaseScope {
 public:
  virtual ~PhaseScope() = default;
  virtual const Deadline& deadline() const = 0;
  virtual void SetBytes(uint64_t bytes) = 0;
  virtual void ReportBytes(uint64_t done, uint64_t total) = 0;
  // The account so far, of the phases that have ended.
  virtual std::vector<PhaseReport> Reports() const = 0;
  // Runs the nested phase of that name now, in this thread.
  virtual Status RunNested(const std::string& name) = 0;
  // Waits for the end of a phase that runs beside this one, or did before it; kCancelled when any
  // has failed meanwhile, kInternal when the plan has no such phase.
  virtual Status Await(const std::string& name) = 0;
  // Waits until `ready`, which is asked anew whenever a phase calls Changed() or ends, and must not
  // call the scope; other threads call it too. kCancelled when a phase has failed. No deadline:
  // whoever is waited for has one. kInternal when nobody is left who could bring it: all that ran
  // beside this phase has ended, or waits as well.
  virtual Status WaitUntil(const std::function<bool()>& ready) = 0;
  virtual void Changed() = 0;
  // A phase that runs beside this one has failed: all that is done here will be undone.
  virtual bool Abandoned() const = 0;
  // The user has changed his mind: for a phase that does nothing but wait. Others are asked between
  // phases.
  virtual bool Cancelled() const = 0;
};

// What a phase says when it stopped in the middle: that of the phase beside it if that one failed.
inline Status CalledOff(const PhaseScope& scope, Error error) {
  if (scope.Abandoned()) return Fail(Code::kCancelled, "called off");
  return Fail(std::move(error));
}

// The only one who cancels the work of a phase, but for the phase beside it, is its deadline.
inline Error TookTooLong() {
  Error late{Code::kDeadlineExceeded};
  late.message = "it took too long";
  return late;
}

// Phases one after another, as one: to run beside others, and to stop when one of those has failed.
Phase InOrder(std::string name, std::vector<Phase> phases);

class Plan {
 public:
  explicit Plan(std::string verb) : verb_(std::move(verb)) {}

  void Add(Phase phase) { steps_.push_back({std::move(phase)}); }
  // Phases that run at the same time, a thread each; the next step begins when all have ended. Of
  // several that fail, the error is the first one's that is not kCancelled.
  void AddParallel(std::vector<Phase> phases) { steps_.push_back(std::move(phases)); }
  // Called when something fails after the commit point; returns a sentence that says what is left,
  // and where.
  void OnFailureAfterCommit(std::function<std::string()> settle) { settle_ = std::move(settle); }

  // Names in the order in which they begin, nested ones after their parent.
  std::vector<std::string> PhaseNames() const;

  struct RunOptions {
    Journal* journal = nullptr;  // may be null in tests of the runner itself
    Progress progress;
    // Asked between phases before the commit point; true undoes.
    std::function<bool()> cancelled;
    // Overrides every phase's timeout when positive.
    std::chrono::milliseconds timeout{0};
  };
  // Exactly one of: the account of a success; an error after everything was undone; an error with
  // `not_undone`, whose message says what is left.
  Result<Account> Run(const RunOptions& options);
  // After a Run that failed: it failed after the commit point.
  bool committed() const { return committed_; }

 private:
  std::string verb_;
  std::vector<std::vector<Phase>> steps_;
  std::function<std::string()> settle_;
  bool committed_ = false;
};

}  // namespace stasis::plan
