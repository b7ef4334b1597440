#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "plan/fault.h"
#include "plan/journal.h"

namespace stasis::plan {
namespace {

// One run of a plan, shared by the threads of a parallel step.
class Runner {
 public:
  Runner(const Plan::RunOptions& options, std::vector<std::string> names)
      : options_(options), names_(std::move(names)) {}

  // Runs the phases of a step in parallel, each on its own thread.
  Status RunStep(const std::vector<Phase>& step);

  // For a nested phase, `parent` is the index of the outer phase's report; otherwise it is -1.
  Status RunPhase(const Phase& phase, bool parallel, int parent = -1);
  // Undoes the phases that had begun, in reverse order. Returns a description of the undos that
  // failed, or an empty string.
  std::string UndoAll();

  bool committed() const {
    std::lock_guard lock(mutex_);
    return committed_;
  }
  // Returns true if a phase with `fails_late` has failed. Then the plan must run on to the commit,
  // and the user cannot cancel it any more.
  bool failed_late() const {
    std::lock_guard lock(mutex_);
    return !late_failure_;
  }
  bool Cancelled() const {
    return !committed() && !failed_late() && options_.cancelled && options_.cancelled();
  }
  // Returns the error of a phase that fails late, once the operation is committed.
  Status LateFailure() {
    std::lock_guard lock(mutex_);
    return committed_ ? std::exchange(late_failure_, Status{}) : Status{};
  }
  double Seconds() const { return watch_.Seconds(); }
  // Returns the reports in the order in which the phases began, nested phases after their parents.
  std::vector<PhaseReport> TakeReports() const;

 private:
  class Scope;

  struct Wait {
    const std::function<bool()>& ready;
    std::thread::id thread;
  };

  Status Execute(const Phase& phase, Scope& scope);
  void NoteEnd(const std::string& name, const Status& status);
  bool AllThreadsWait() const;

  const Plan::RunOptions& options_;
  const std::vector<std::string> names_;
  Stopwatch watch_;
  mutable std::mutex mutex_;  // guards all below
  std::vector<const Phase*> begun_;
  std::vector<PhaseReport> reports_;
  bool committed_ = false;
  std::map<std::string, bool> ended_;  // true: succeeded
  bool failed_ = false;
  std::string cause_;  // the error of the first phase that failed
  Status late_failure_;
  std::set<std::thread::id> at_work_;  // threads of the step that have not ended
  std::list<Wait> waits_;
  std::condition_variable changed_;
};

class Runner::Scope : public PhaseScope {
 public:
  Scope(Runner& runner, const Phase& phase, size_t report)
      : runner_(runner), phase_(phase), report_(report) {
    const bool replaced = runner.options_.timeout.count() > 0 && !phase.keeps_timeout;
    const auto timeout = replaced ? runner.options_.timeout : phase.timeout;
    deadline_ = Deadline::In(timeout);
  }
  const Deadline& deadline() const override { return deadline_; }
  void SetBytes(uint64_t bytes) override {
    std::lock_guard lock(runner_.mutex_);
    runner_.reports_[report_].bytes = bytes;
  }
  void ReportBytes(uint64_t done, uint64_t total) override {
    if (runner_.options_.progress.bytes) runner_.options_.progress.bytes(phase_.name, done, total);
  }
  std::vector<PhaseReport> Reports() const override {
    std::lock_guard lock(runner_.mutex_);
    std::vector<PhaseReport> ended;
    for (const PhaseReport& report : runner_.reports_) {
      if (report.seconds > 0) ended.push_back(report);
    }
    return ended;
  }
  Status RunNested(const std::string& name) override {
    for (const Phase& nested : phase_.nested) {
      if (nested.name == name) return runner_.RunPhase(nested, false, static_cast<int>(report_));
    }
    return Fail(Code::kInternal, "phase " + phase_.name + " has no nested phase " + name);
  }
  Status Await(const std::string& name) override {
    const auto& names = runner_.names_;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return Fail(Code::kInternal,
                  fmt::format("phase {} waits for phase {}, which this plan does not have",
                              phase_.name, name));
    }
    return WaitUntil([&] {
      auto ended = runner_.ended_.find(name);
      return ended != runner_.ended_.end() && ended->second;
    });
  }
  Status WaitUntil(const std::function<bool()>& ready) override {
    std::unique_lock lock(runner_.mutex_);
    if (ready()) return {};
    const auto wait =
        runner_.waits_.insert(runner_.waits_.end(), {ready, std::this_thread::get_id()});
    bool is_ready = false, is_vain = false;
    runner_.changed_.wait(lock, [&] {
      is_ready = ready();
      is_vain = !is_ready && !runner_.failed_ && runner_.AllThreadsWait();
      return is_ready || is_vain || runner_.failed_;
    });
    runner_.waits_.erase(wait);
    assert(is_ready || is_vain || runner_.failed_);
    if (is_ready) return {};
    if (!is_vain) return Fail(StoppedByOther(runner_.cause_));
    return Fail(Code::kInternal,
                fmt::format("phase {} waits, and no other phase can wake it", phase_.name));
  }
  void Changed() override {
    std::lock_guard lock(runner_.mutex_);
    runner_.changed_.notify_all();
  }
  bool Abandoned() const override {
    std::lock_guard lock(runner_.mutex_);
    return runner_.failed_;
  }
  bool Cancelled() const override { return runner_.Cancelled(); }

 private:
  Runner& runner_;
  const Phase& phase_;
  const size_t report_;
  Deadline deadline_;
};

Status Runner::Execute(const Phase& phase, Scope& scope) {
  if (options_.journal != nullptr) STASIS_TRY(options_.journal->PhaseBegins(phase.name));
  STASIS_TRY(InjectFault(phase.name, FaultPoint::kBefore, scope.deadline()));
  STASIS_TRY(phase.run(scope));
  if (phase.commits) {
    std::lock_guard lock(mutex_);
    assert(!committed_);
    committed_ = true;
    if (options_.journal != nullptr) STASIS_TRY(options_.journal->Commit());
  }
  STASIS_TRY(InjectFault(phase.name, FaultPoint::kAfter, scope.deadline()));
  if (options_.journal != nullptr) STASIS_TRY(options_.journal->PhaseEnded(phase.name));
  return {};
}

void Runner::NoteEnd(const std::string& name, const Status& status) {
  std::lock_guard lock(mutex_);
  ended_[name] = status.has_value();
  if (!status && !failed_) cause_ = status.error().ToString();
  failed_ |= !status;
  changed_.notify_all();
}

// Returns true if every thread of the step has ended or waits for something that is not ready. A
// thread that waits for its own threads (base/parallel.h) does not wait here, so it counts as
// running. The caller holds the mutex.
bool Runner::AllThreadsWait() const {
  return std::all_of(at_work_.begin(), at_work_.end(), [this](std::thread::id thread) {
    return std::any_of(waits_.begin(), waits_.end(),
                       [&](const Wait& wait) { return wait.thread == thread && !wait.ready(); });
  });
}

Status Runner::RunPhase(const Phase& phase, bool parallel, int parent) {
  if (Cancelled()) {
    Status cancelled = Fail(Code::kCancelled, "cancelled");
    NoteEnd(phase.name, cancelled);
    return cancelled;
  }
  if (options_.progress.begin) options_.progress.begin(phase.name);
  size_t report;
  {
    std::lock_guard lock(mutex_);
    begun_.push_back(&phase);
    report = reports_.size();
    assert(parent < static_cast<int>(report));
    int depth = parent < 0 ? 0 : reports_[static_cast<size_t>(parent)].depth + 1;
    reports_.push_back({phase.name, watch_.Seconds(), 0, 0, parallel, depth, parent});
  }
  Scope scope(*this, phase, report);
  Stopwatch watch;
  Status status = Annotate(Execute(phase, scope), phase.name);
  const bool later = !status && phase.fails_late;
  NoteEnd(phase.name, later ? Status() : status);
  PhaseReport done;
  {
    std::lock_guard lock(mutex_);
    reports_[report].seconds = watch.Seconds();
    done = reports_[report];
    if (later) {
      late_failure_ = std::move(status);
      return {};
    }
  }
  if (status && options_.progress.end) options_.progress.end(done);
  return status;
}

Status Runner::RunStep(const std::vector<Phase>& step) {
  if (step.empty()) return {};
  std::vector<Status> results(step.size());
  Status started;  // guarded by mutex_
  auto run = [&](size_t i) {
    {
      std::lock_guard lock(mutex_);
      if (!started) return;
    }
    results[i] = RunPhase(step[i], step.size() > 1);
    std::lock_guard lock(mutex_);
    [[maybe_unused]] const size_t erased = at_work_.erase(std::this_thread::get_id());
    assert(erased == 1);
    changed_.notify_all();
  };
  assert(at_work_.empty() && waits_.empty());
  std::vector<Thread> threads;
  {
    // Phases may wait for each other, so no phase begins before all threads are started.
    std::lock_guard lock(mutex_);
    for (size_t i = 1; i < step.size() && started; ++i) {
      auto thread = Thread::Start([&run, i] { run(i); });
      if (!thread) {
        started = Fail(std::move(thread).error().WithContext(step[i].name));
      } else {
        at_work_.insert(thread->id());
        threads.push_back(std::move(*thread));
      }
    }
    at_work_.insert(std::this_thread::get_id());
  }
  run(0);
  threads.clear();
  if (!started) {
    at_work_.clear();
    return started;
  }
  // A phase that stopped because another one failed returns kCancelled; report the error of the
  // other one.
  auto cause = std::find_if(results.begin(), results.end(), [](const Status& result) {
    return !result && result.error().code != Code::kCancelled;
  });
  if (cause != results.end()) return std::move(*cause);
  for (auto& result : results) STASIS_TRY(std::move(result));
  return {};
}

std::vector<PhaseReport> Runner::TakeReports() const {
  std::vector<PhaseReport> ordered;
  std::function<void(int)> take = [&](int parent) {
    for (size_t i = 0; i < reports_.size(); ++i) {
      if (reports_[i].parent != parent) continue;
      ordered.push_back(reports_[i]);
      take(static_cast<int>(i));
    }
  };
  take(-1);
  assert(ordered.size() == reports_.size());
  for (PhaseReport& report : ordered) report.parent = -1;
  return ordered;
}

std::string Runner::UndoAll() {
  assert(!committed_ && at_work_.empty());
  std::string failures;
  std::set<std::string> given_up;
  for (auto it = begun_.rbegin(); it != begun_.rend(); ++it) {
    const Phase& phase = **it;
    if (!phase.undo || given_up.contains(phase.undo_group)) continue;
    Status status = phase.undo();
    if (status) continue;
    if (!phase.undo_group.empty()) given_up.insert(phase.undo_group);
    if (!failures.empty()) failures += "; ";
    failures += "undoing " + phase.name + ": " + status.error().ToString();
  }
  return failures;
}

void CollectNames(const Phase& phase, std::vector<std::string>& names) {
  names.push_back(phase.name);
  for (const Phase& nested : phase.nested) CollectNames(nested, names);
}

}  // namespace

Phase InOrder(std::string name, std::vector<Phase> phases) {
  std::chrono::milliseconds timeout{0};
  std::vector<std::string> names;
  for (const Phase& phase : phases) {
    timeout += phase.timeout;
    names.push_back(phase.name);
  }
  return {.name = std::move(name),
          .timeout = timeout,
          .run = [names = std::move(names)](PhaseScope& scope) -> Status {
            for (const std::string& nested : names) {
              if (scope.Abandoned()) return Fail(StoppedByOther());
              STASIS_TRY(scope.RunNested(nested));
            }
            return {};
          },
          .nested = std::move(phases)};
}

std::vector<std::string> Plan::PhaseNames() const {
  std::vector<std::string> names;
  for (const auto& step : steps_) {
    for (const Phase& phase : step) CollectNames(phase, names);
  }
  return names;
}

Result<Account> Plan::Run(const RunOptions& options) {
  Runner runner(options, PhaseNames());
  Status status;
  for (const auto& step : steps_) {
    status = runner.RunStep(step);
    if (status) status = runner.LateFailure();
    if (!status) break;
  }
  if (status) return Account{verb_, runner.TakeReports(), runner.Seconds()};

  Error error = std::move(status).error();
  committed_ = runner.committed();
  if (committed_) {
    error.not_undone = true;
    std::string left = on_failure_after_commit_ ? on_failure_after_commit_() : "";
    if (!left.empty()) error.hint = left + (error.hint.empty() ? "" : "\n" + error.hint);
  } else if (std::string left = runner.UndoAll(); left.empty()) {
    if (!error.not_undone) {
      error.hint = "Everything is as it was before." + (error.hint.empty() ? "" : " " + error.hint);
    }
  } else {
    error.not_undone = true;
    error.hint = "It could not be undone: " + left + ". `stasis recover` tries again." +
                 (error.hint.empty() ? "" : "\n" + error.hint);
  }
  // If something could not be undone, the journal entry stays for `recover`.
  if (options.journal != nullptr && !error.not_undone) {
    if (Status finished = options.journal->Finish(); !finished) {
      error.hint += "\n" + finished.error().ToString();
    }
  }
  return Fail(std::move(error));
}

}  // namespace stasis::plan
