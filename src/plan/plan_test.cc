#include "plan/plan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <mutex>

#include "base/no_threads_testing.h"

namespace stasis::plan {
namespace {

using std::chrono::milliseconds;

// Phases that record their runs and undos.
class PlanTest : public testing::Test {
 protected:
  Phase Step(const std::string& name, bool fails = false) {
    Phase phase;
    phase.name = name;
    phase.timeout = milliseconds(50);
    phase.run = [=, this](PhaseScope&) -> Status {
      Note("+" + name);
      if (fails) return Fail(Code::kInternal, name + " broke");
      return {};
    };
    phase.undo = [=, this]() -> Status {
      Note("-" + name);
      return {};
    };
    return phase;
  }
  void Note(const std::string& what) {
    std::lock_guard lock(mutex_);
    seen_ += what + " ";
  }
  void TearDown() override { ::unsetenv("STASIS_FAULT"); }

  std::mutex mutex_;
  std::string seen_;
};

TEST_F(PlanTest, AFailureUndoesPhasesInReverseOrder) {
  Plan plan("test");
  plan.Add(Step("a"));
  plan.Add(Step("b", /*fails=*/true));
  plan.Add(Step("c"));
  auto account = plan.Run({});
  ASSERT_FALSE(account);
  EXPECT_EQ(seen_, "+a +b -b -a ");
  EXPECT_FALSE(account.error().not_undone);
  EXPECT_EQ(account.error().ToString(), "b: b broke");
}

TEST_F(PlanTest, AFailedUndoIsReportedAndTheOthersStillRun) {
  Plan plan("test");
  plan.Add(Step("a"));
  Phase b = Step("b", /*fails=*/true);
  b.undo = [] { return Status(Fail(Code::kInternal, "stuck")); };
  plan.Add(std::move(b));
  auto account = plan.Run({});
  ASSERT_FALSE(account);
  EXPECT_TRUE(account.error().not_undone);
  EXPECT_NE(account.error().hint.find("undoing b: stuck"), std::string::npos);
  EXPECT_EQ(seen_, "+a +b -a ");
}

TEST_F(PlanTest, TheUsersTimeoutDoesNotReplaceThatOfEveryPhase) {
  for (bool keeps : {false, true}) {
    Plan plan("test");
    Phase phase = Step("a");
    phase.timeout = std::chrono::hours(1);
    phase.keeps_timeout = keeps;
    bool is_long = false;
    phase.run = [&](PhaseScope& scope) -> Status {
      is_long = scope.deadline().PollTimeout() > 30 * 60 * 1000;
      return {};
    };
    plan.Add(std::move(phase));
    Plan::RunOptions options;
    options.timeout = std::chrono::minutes(1);
    ASSERT_TRUE(plan.Run(options));
    EXPECT_EQ(is_long, keeps);
  }
}

TEST_F(PlanTest, AFailedUndoOfAGroupIsNotRepeated) {
  for (bool stuck : {true, false}) {
    Plan plan("test");
    plan.Add(Step("a"));
    for (const char* name : {"b", "c"}) {
      Phase phase = Step(name);
      phase.undo_group = "one";
      phase.undo = [this, stuck]() -> Status {
        Note("-one");
        return stuck ? Status(Fail(Code::kInternal, "stuck")) : Status{};
      };
      plan.Add(std::move(phase));
    }
    plan.Add(Step("d", /*fails=*/true));
    seen_.clear();
    auto account = plan.Run({});
    ASSERT_FALSE(account);
    EXPECT_EQ(seen_, stuck ? "+a +b +c +d -d -one -a " : "+a +b +c +d -d -one -one -a ");
    EXPECT_EQ(account.error().not_undone, stuck);
  }
}

TEST_F(PlanTest, AfterTheCommitNothingIsUndone) {
  Plan plan("test");
  plan.Add(Step("a"));
  Phase commit = Step("commit");
  commit.commits = true;
  plan.Add(std::move(commit));
  plan.Add(Step("late", /*fails=*/true));
  plan.OnFailureAfterCommit([] { return std::string("the image is complete"); });
  auto account = plan.Run({});
  ASSERT_FALSE(account);
  EXPECT_EQ(seen_, "+a +commit +late ");
  EXPECT_TRUE(account.error().not_undone);
  EXPECT_EQ(account.error().hint, "the image is complete");
}

TEST_F(PlanTest, ParallelPhasesAllEndBeforeAnyIsUndone) {
  Plan plan("test");
  plan.AddParallel({Step("a", /*fails=*/true), Step("b")});
  ASSERT_FALSE(plan.Run({}));
  EXPECT_NE(seen_.find("+a"), std::string::npos);
  EXPECT_NE(seen_.find("+b"), std::string::npos);
  EXPECT_GT(seen_.find("-a"), seen_.find("+b"));
  EXPECT_NE(seen_.find("-b"), std::string::npos);
}

// Parallel phases may wait for each other, so none may begin if a thread cannot be started.
TEST_F(PlanTest, WithoutThreadsNoneOfSeveralParallelPhasesBegins) {
  ExpectWithoutThreads([this]() -> std::string {
    Plan plan("test");
    plan.Add(Step("a"));
    plan.AddParallel({Step("b"), Step("c")});
    auto account = plan.Run({});
    if (account) return "it succeeded";
    if (account.error().code != Code::kResourceExhausted || account.error().not_undone) {
      return account.error().ToString();
    }
    return seen_ == "+a -a " ? "" : seen_;
  });
}

TEST_F(PlanTest, APhaseAwaitsAParallelPhase) {
  Plan plan("test");
  Phase slow = Step("slow");
  std::promise<void> go;
  slow.run = [&, future = go.get_future().share()](PhaseScope&) -> Status {
    future.wait();
    Note("+slow");
    return {};
  };
  Phase waiting = Step("waiting");
  waiting.run = [&](PhaseScope& scope) -> Status {
    go.set_value();
    STASIS_TRY(scope.Await("slow"));
    Note("+waiting");
    return {};
  };
  plan.AddParallel({std::move(slow), std::move(waiting)});
  EXPECT_TRUE(plan.Run({}));
  EXPECT_EQ(seen_, "+slow +waiting ");
}

TEST_F(PlanTest, AwaitingAFailedPhaseIsNotTheCause) {
  Plan plan("test");
  Phase waiting = Step("waiting");
  waiting.run = [&](PhaseScope& scope) -> Status {
    Status failed = scope.Await("b");
    EXPECT_NE(failed.error().message.find("parallel phase failed: b: "), std::string::npos)
        << failed.error().message;
    EXPECT_TRUE(scope.Abandoned());
    EXPECT_EQ(failed.error().code, Code::kCancelled);
    return failed;
  };
  plan.AddParallel({std::move(waiting), Step("b", /*fails=*/true)});
  auto account = plan.Run({});
  ASSERT_FALSE(account);
  EXPECT_NE(account.error().code, Code::kCancelled);
  EXPECT_NE(account.error().ToString().find('b'), std::string::npos);
}

TEST_F(PlanTest, AWaitEndsAtAChangeAndAtAFailure) {
  bool there = false, seen = false;
  Plan plan("test");
  Phase brings = Step("brings"), waits = Step("waits");
  brings.run = [&](PhaseScope& scope) -> Status {
    there = true;
    scope.Changed();
    STASIS_TRY(scope.WaitUntil([&] { return seen; }));
    return Fail(Code::kInternal, "broke");
  };
  waits.run = [&](PhaseScope& scope) -> Status {
    STASIS_TRY(scope.WaitUntil([&] { return there; }));
    seen = true;
    scope.Changed();
    Status never = scope.WaitUntil([] { return false; });
    EXPECT_EQ(never.error().code, Code::kCancelled);
    return never;
  };
  plan.AddParallel({std::move(waits), std::move(brings)});
  auto account = plan.Run({});
  ASSERT_FALSE(account);
  EXPECT_EQ(account.error().ToString(), "brings: broke");
}

TEST_F(PlanTest, AWaitThatNoPhaseCanEndFails) {
  auto waits_for = [this](const char* name, std::function<bool()> ready) {
    Phase phase = Step(name);
    phase.run = [ready = std::move(ready)](PhaseScope& scope) { return scope.WaitUntil(ready); };
    return phase;
  };
  auto never = [] { return false; };
  const std::string in_vain = "a: phase a waits, and no other phase can wake it";
  {
    Plan plan("test");
    plan.Add(Step("before"));
    plan.Add(waits_for("a", never));
    plan.Add(Step("behind"));
    auto account = plan.Run({});
    ASSERT_FALSE(account);
    EXPECT_EQ(account.error().ToString(), in_vain);
    EXPECT_EQ(account.error().code, Code::kInternal);
    EXPECT_EQ(seen_, "+before -a -before ");
  }
  {  // The parallel phases have ended.
    Plan plan("test");
    plan.AddParallel({waits_for("a", never), Step("b"), InOrder("c", {Step("d"), Step("e")})});
    auto account = plan.Run({});
    ASSERT_FALSE(account);
    EXPECT_EQ(account.error().ToString(), in_vain);
  }
  {  // The phases wait for each other.
    bool one = false, two = false;
    Plan plan("test");
    plan.AddParallel({waits_for("a", [&] { return one; }), waits_for("b", [&] { return two; })});
    auto account = plan.Run({});
    ASSERT_FALSE(account);
    EXPECT_EQ(account.error().code, Code::kInternal);
  }
  {
    Plan plan("test");
    Phase awaits = Step("a");
    awaits.run = [](PhaseScope& scope) { return scope.Await("no-phase"); };
    plan.AddParallel({std::move(awaits), Step("b")});
    auto account = plan.Run({});
    ASSERT_FALSE(account);
    EXPECT_NE(account.error().ToString().find("waits for phase no-phase"), std::string::npos);
  }
}

// A waiting phase counts as running once its condition holds, even before it has woken.
TEST_F(PlanTest, APhaseThatIsAboutToWakeIsNotStuck) {
  constexpr int kRounds = 2000;
  std::atomic<int> turn{0};
  std::vector<Phase> phases;
  Plan plan("test");
  for (int mine : {0, 1}) {
    Phase phase = Step(mine == 0 ? "even" : "odd");
    phase.run = [&turn, mine](PhaseScope& scope) -> Status {
      for (int i = mine; i < kRounds; i += 2) {
        STASIS_TRY(scope.WaitUntil([&] { return turn == i; }));
        ++turn;
        scope.Changed();
      }
      return {};
    };
    phases.push_back(std::move(phase));
  }
  plan.AddParallel(std::move(phases));
  auto account = plan.Run({});
  EXPECT_TRUE(account) << account.error().ToString();
  EXPECT_EQ(turn, kRounds);
}

TEST_F(PlanTest, PhasesInOrderStopWhenOneBesideThemFails) {
  Plan plan("test");
  Phase waits = Step("waits");
  waits.run = [](PhaseScope& scope) -> Status {
    (void)scope.WaitUntil([] { return false; });  // until "b" has failed
    return {};
  };
  Phase last = Step("last");
  // Await must also end for a phase that will never begin.
  last.run = [](PhaseScope& scope) { return scope.Await("not-begun"); };
  plan.AddParallel({InOrder("all", {std::move(waits), Step("not-begun")}), std::move(last),
                    Step("b", /*fails=*/true)});
  auto account = plan.Run({});
  ASSERT_FALSE(account);
  EXPECT_EQ(account.error().ToString(), "b: b broke");
  EXPECT_EQ(seen_.find("not-begun"), std::string::npos);
}

TEST_F(PlanTest, NestedPhaseCommitsTheWhole) {
  Plan plan("test");
  Phase outer = Step("outer");
  Phase inner = Step("inner");
  inner.commits = true;
  outer.nested.push_back(std::move(inner));
  outer.run = [this](PhaseScope& scope) -> Status {
    STASIS_TRY(scope.RunNested("inner"));
    Note("+outer");
    return Fail(Code::kInternal, "later");
  };
  plan.Add(std::move(outer));
  EXPECT_EQ(plan.PhaseNames(), (std::vector<std::string>{"outer", "inner"}));
  auto account = plan.Run({});
  ASSERT_FALSE(account);
  EXPECT_TRUE(account.error().not_undone);
  EXPECT_EQ(seen_, "+inner +outer ");
}

TEST_F(PlanTest, ALateFailureWaitsForTheCommit) {
  for (bool commits : {true, false}) {
    seen_.clear();
    Plan plan("test");
    Phase late = Step("late", /*fails=*/true);
    late.fails_late = true;
    Phase beside = Step("beside");
    beside.run = [this](PhaseScope& scope) -> Status {
      STASIS_TRY(scope.Await("late"));
      EXPECT_FALSE(scope.Abandoned());
      Note("+beside");
      return {};
    };
    plan.AddParallel({InOrder("all", {std::move(late)}), std::move(beside)});
    Phase commit = Step("commit", /*fails=*/!commits);
    commit.commits = true;
    plan.Add(std::move(commit));
    plan.Add(Step("tidy"));
    plan.OnFailureAfterCommit([] { return std::string("The image is complete."); });
    auto account = plan.Run({});
    ASSERT_FALSE(account);
    EXPECT_EQ(account.error().not_undone, commits);
    EXPECT_EQ(plan.committed(), commits);
    if (commits) {
      EXPECT_EQ(account.error().ToString(), "late: late broke");
      EXPECT_EQ(seen_, "+late +beside +commit ");
    } else {
      EXPECT_EQ(account.error().ToString(), "commit: commit broke");
      // The order of parallel phases, and of their undo, is not fixed.
      EXPECT_TRUE(seen_ == "+late +beside +commit -commit -beside -late " ||
                  seen_ == "+late +beside +commit -commit -late -beside ")
          << seen_;
    }
  }
}

TEST_F(PlanTest, CancelUndoesBeforeTheCommit) {
  Plan plan("test");
  plan.Add(Step("a"));
  plan.Add(Step("b"));
  Plan::RunOptions options;
  options.cancelled = [this] { return seen_.find("+a") != std::string::npos; };
  auto account = plan.Run(options);
  ASSERT_FALSE(account);
  EXPECT_EQ(account.error().code, Code::kCancelled);
  EXPECT_EQ(seen_, "+a -a ");
}

// After a late failure the image may be all that is left of the program, so a cancel must not undo
// it.
TEST_F(PlanTest, AfterALateFailureNothingIsCancelled) {
  Plan plan("test");
  Phase late = Step("late", /*fails=*/true);
  late.fails_late = true;
  plan.Add(std::move(late));
  Phase commit = Step("commit");
  commit.commits = true;
  plan.Add(std::move(commit));
  Plan::RunOptions options;
  options.cancelled = [this] { return seen_.find("+late") != std::string::npos; };
  auto account = plan.Run(options);
  ASSERT_FALSE(account);
  EXPECT_TRUE(plan.committed());
  EXPECT_EQ(account.error().ToString(), "late: late broke");
  EXPECT_EQ(seen_, "+late +commit ");
}

TEST_F(PlanTest, FaultsOccurWhereRequested) {
  struct Row {
    const char* fault;
    const char* seen;
    Code code;
  };
  static constexpr Row kRows[] = {
      {"a:before:fail", "-a ", Code::kInternal},
      {"a:after:fail", "+a -a ", Code::kInternal},
      {"a:before:hang", "-a ", Code::kDeadlineExceeded},
      {"b:before:fail", "+a -b -a ", Code::kInternal},
      {"a:nowhere:fail", "-a ", Code::kInvalidArgument},
      {"a:before:explode", "-a ", Code::kInvalidArgument},
  };
  for (const Row& row : kRows) {
    ::setenv("STASIS_FAULT", row.fault, 1);
    seen_.clear();
    Plan plan("test");
    plan.Add(Step("a"));
    plan.Add(Step("b"));
    auto account = plan.Run({});
    ASSERT_FALSE(account) << row.fault;
    EXPECT_EQ(seen_, row.seen) << row.fault;
    EXPECT_EQ(account.error().code, row.code) << row.fault;
  }
}

}  // namespace
}  // namespace stasis::plan
