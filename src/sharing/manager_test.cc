#include "sharing/manager.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <future>

namespace stasis::sharing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// An agent. The test sets what it wants; the manager's answers are noted.
struct Agent {
  std::mutex mutex;
  std::vector<agent_client::AgentWants> news;
  std::vector<std::pair<uint64_t, bool>> answers;
  bool ended = false;
  bool connected = false;
  bool returns = false;  // the manager has said that it will connect again
  bool takes_answers = true;
  bool stopped = false;  // answers nothing
  bool asked = false;    // for its use
  int connections = 0;
  UniqueFd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void Tell(const agent_client::AgentWants& wants) {
    std::lock_guard lock(mutex);
    news.push_back(wants);
    Ring();
  }
  void Disconnect() {
    std::lock_guard lock(mutex);
    ended = true;
    Ring();
  }
  void Continue() {
    std::lock_guard lock(mutex);
    stopped = false;
    Ring();
  }
  void Ring() const {
    const uint64_t one = 1;
    (void)!::write(event.get(), &one, sizeof one);
  }
};

class Watch final : public agent_client::AgentWatch {
 public:
  explicit Watch(Agent& agent) : agent_(agent) {
    std::lock_guard lock(agent_.mutex);
    agent_.connected = true;
    ++agent_.connections;
    agent_.ended = agent_.returns = agent_.asked = false;
    use_.answered = agent_client::AgentUse::Clock::now();
  }
  ~Watch() override {
    std::lock_guard lock(agent_.mutex);
    agent_.connected = false;
  }
  int fd() const override { return agent_.event.get(); }
  Result<std::optional<agent_client::AgentWants>> Receive() override {
    std::lock_guard lock(agent_.mutex);
    uint64_t count = 0;
    (void)!::read(agent_.event.get(), &count, sizeof count);
    if (agent_.ended) return Fail(Code::kUnavailable, "disconnected");
    if (agent_.asked && !agent_.stopped) {
      agent_.asked = false;
      use_.answered = agent_client::AgentUse::Clock::now();
    }
    if (agent_.news.empty()) return std::optional<agent_client::AgentWants>();
    agent_client::AgentWants wants = agent_.news.front();
    agent_.news.erase(agent_.news.begin());
    return std::optional(wants);
  }
  Status Answer(uint64_t number, bool try_again) override {
    std::lock_guard lock(agent_.mutex);
    if (!agent_.takes_answers) return Fail(Code::kDeadlineExceeded, "its socket is full");
    agent_.answers.emplace_back(number, try_again);
    return {};
  }
  const agent_client::AgentUse& use() const override { return use_; }
  Status AskUse() override {
    std::lock_guard lock(agent_.mutex);
    agent_.asked = true;
    if (!agent_.stopped) agent_.Ring();
    return {};
  }
  Status WillReturn() override {
    std::lock_guard lock(agent_.mutex);
    agent_.returns = true;
    return {};
  }

 private:
  Agent& agent_;
  agent_client::AgentUse use_;
};

// Two programs whose processes are this one and its parent, which are alive.
class ManagerTest : public ::testing::Test,
                    private agent_client::AgentWatches,
                    private Surveys,
                    private Swaps {
 protected:
  ManagerTest() {
    own_ = process::ReadStat({::getpid()})->id;
    parent_ = process::ReadStat({::getppid()})->id;
    programs_["old"].memory["gpu0"] = {60, 0, 0};
    programs_["new"].memory["gpu0"] = {60, 0, 0};
    programs_["new"].state = State::kSuspended;
    limits_.policy.idle_after = milliseconds(1);
    limits_.policy.shortest_turn = milliseconds(1);
    limits_.host_bytes = 1000;
    limits_.first_hold = milliseconds(20);
  }
  ~ManagerTest() override { manager_.reset(); }

  void Start() {
    auto manager = Manager::Start({*this, *this, *this,
                                   [this](const auto& saved) {
                                     std::lock_guard lock(mutex_);
                                     saved_ = saved;
                                   },
                                   [](const agent_protocol::Uuid&) { return std::string("gpu0"); }},
                                  limits_, {});
    ASSERT_TRUE(manager);
    manager_ = std::move(*manager);
  }

  template <class Condition>
  void Await(Condition condition, const char* what) {
    for (int i = 0; i < 5000; ++i) {
      if (condition()) return;
      ::usleep(1000);
    }
    FAIL() << "does not come: " << what;
  }
  void AwaitConnected() {
    Await(
        [&] {
          std::lock_guard a(old_.mutex);
          std::lock_guard b(new_.mutex);
          return old_.connected && new_.connected;
        },
        "connections");
  }
  bool HasHostRoom(uint64_t bytes) {
    std::promise<bool> answer;
    manager_->AskHostRoom(bytes, seconds(20), [&](bool has_room) { answer.set_value(has_room); });
    return answer.get_future().get();
  }
  State StateOf(const std::string& id) {
    std::lock_guard lock(mutex_);
    return programs_[id].state;
  }

  Result<std::unique_ptr<agent_client::AgentWatch>> Connect(process::HostPid pid,
                                                            milliseconds) override {
    return std::make_unique<Watch>(pid == own_.pid ? new_ : old_);
  }

  void Start(const std::set<std::string>& silent,
             std::function<void(Result<SurveyAnswer>)> done) override {
    SurveyAnswer answer;
    {
      std::lock_guard lock(mutex_);
      uint64_t used = 0;
      for (const auto& [id, facts] : programs_) {
        bool answers = true;
        if (id == "old") {
          std::lock_guard agent(old_.mutex);
          const bool asked = !silent.contains(id);
          answers = asked && !old_.stopped;
          if (asked && !answers) ++late_surveys_;  // it has waited in vain
        }
        answer.survey.programs[id] = answers ? std::optional(facts) : std::nullopt;
        if (!answers) answer.survey.silent.insert(id);
        answer.programs[id].processes = {id == "new" ? own_ : parent_};
        if (facts.state == State::kAwake) used += facts.memory.at("gpu0").data;
      }
      answer.survey.gpus["gpu0"] = {80, 80 - used};
    }
    ++surveys_;
    {
      std::lock_guard lock(mutex_);
      if (holds_surveys_) {
        held_.push_back([done, answer] { done(answer); });
        return;
      }
    }
    done(std::move(answer));
  }
  // Ends the surveys that have begun.
  void LetGo() {
    std::vector<std::function<void()>> held;
    {
      std::lock_guard lock(mutex_);
      holds_surveys_ = false;
      held.swap(held_);
    }
    for (const auto& end : held) end();
  }

  void Start(const Plan::Swap& swap, std::function<void(SwapResult)> done) override {
    SwapResult result;
    {
      std::lock_guard lock(mutex_);
      result.ok = failures_ == 0;
      result.problem = "planned";
      if (failures_ > 0) --failures_;
      if (result.ok) {
        programs_[swap.id].state = swap.kind == Action::Kind::kResume        ? State::kAwake
                                   : swap.kind == Action::Kind::kSuspendData ? State::kContextKept
                                                                             : State::kSuspended;
      }
      ++swaps_;
    }
    done(result);
  }

  Limits limits_;
  process::ProcessId own_, parent_;
  Agent old_, new_;
  std::mutex mutex_;
  std::map<std::string, Facts> programs_;
  std::map<std::string, Saved> saved_;
  int failures_ = 0;
  bool holds_surveys_ = false;
  std::vector<std::function<void()>> held_;
  std::atomic<int> surveys_{0}, late_surveys_{0}, swaps_{0};
  std::unique_ptr<Manager> manager_;
};

agent_client::AgentWants AtGate() {
  agent_client::AgentWants wants;
  wants.thread_at_gate = true;
  return wants;
}

agent_client::AgentWants Asks(uint64_t number, uint64_t bytes) {
  agent_client::AgentWants wants;
  wants.allocation = agent_client::AgentWants::Allocation{number, bytes, {}};
  return wants;
}

TEST_F(ManagerTest, AThreadAtTheGateGetsItsGpu) {
  Start();
  AwaitConnected();
  new_.Tell(AtGate());
  Await([&] { return StateOf("new") == State::kAwake; }, "the resume");
  EXPECT_EQ(StateOf("old"), State::kContextKept);
  Await(
      [&] {
        std::lock_guard lock(mutex_);
        return saved_["old"].swaps == 1;
      },
      "the account");
}

TEST_F(ManagerTest, AnAllocationIsAnswered) {
  programs_["new"].state = State::kAwake;
  programs_["new"].memory["gpu0"].data = 10;
  Start();
  AwaitConnected();
  new_.Tell(Asks(4, 30));
  Await(
      [&] {
        std::lock_guard lock(new_.mutex);
        return !new_.answers.empty();
      },
      "the answer");
  EXPECT_EQ(new_.answers[0], (std::pair<uint64_t, bool>(4, true)));
  EXPECT_EQ(StateOf("old"), State::kContextKept);
}

TEST_F(ManagerTest, HostMemoryThatAnEndedProgramHasFreedIsFound) {
  programs_["old"].memory["gpu0"].data = 2000;
  Start();
  AwaitConnected();
  EXPECT_FALSE(HasHostRoom(1));
  {
    std::lock_guard lock(mutex_);
    programs_.erase("old");
  }
  EXPECT_TRUE(HasHostRoom(1));
}

TEST_F(ManagerTest, HostMemoryForAProgramThatHasGrownIsCounted) {
  Start();
  AwaitConnected();
  EXPECT_TRUE(HasHostRoom(1));
  {
    std::lock_guard lock(mutex_);
    programs_["old"].memory["gpu0"].data = 2000;
  }
  EXPECT_FALSE(HasHostRoom(1));
}

TEST_F(ManagerTest, QuestionsForHostMemoryShareASurveyThatHangs) {
  Start();
  AwaitConnected();
  Await([&] { return HasHostRoom(1); }, "the first survey");
  {
    std::lock_guard lock(mutex_);
    holds_surveys_ = true;
  }
  const int before = surveys_;
  manager_->Refresh();
  Await([&] { return surveys_ == before + 1; }, "a survey");
  std::atomic<int> answers{0};
  for (int i = 0; i < 100; ++i) {
    manager_->AskHostRoom(1, seconds(20), [&](bool) { ++answers; });
  }
  EXPECT_EQ(answers, 0) << "the survey in progress began before";
  LetGo();
  Await([&] { return answers == 100; }, "the answers");
  EXPECT_LE(surveys_, before + 3);
}

TEST_F(ManagerTest, AQuestionForHostMemoryIsAnsweredThoughASurveyHangs) {
  Start();
  AwaitConnected();
  {
    std::lock_guard lock(mutex_);
    holds_surveys_ = true;
  }
  std::promise<bool> answer;
  manager_->AskHostRoom(1, milliseconds(5), [&](bool has_room) { answer.set_value(has_room); });
  EXPECT_TRUE(answer.get_future().get());
  LetGo();
}

TEST_F(ManagerTest, EndsRightAfterASurveyThatMissesAProgram) {
  const Facts old = programs_["old"];
  for (int round = 0; round < 30; ++round) {
    Start();
    AwaitConnected();
    {
      std::lock_guard lock(mutex_);
      programs_.erase("old");
    }
    (void)HasHostRoom(5000);
    manager_.reset();
    programs_["old"] = old;
  }
}

TEST_F(ManagerTest, AFailedSwapIsTriedAgainLaterAndNotInALoop) {
  failures_ = 2;
  Start();
  AwaitConnected();
  const auto began = std::chrono::steady_clock::now();
  new_.Tell(AtGate());
  Await([&] { return StateOf("new") == State::kAwake; }, "the resume");
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(60));
  EXPECT_EQ(swaps_, 4);
}

TEST_F(ManagerTest, AProgramThatDoesNotAnswerDelaysOneSurvey) {
  Start();
  AwaitConnected();
  {
    std::lock_guard lock(old_.mutex);
    old_.stopped = true;
  }
  for (int i = 0; i < 10; ++i) {
    const int before = surveys_;
    manager_->Refresh();
    Await([&] { return surveys_ > before; }, "a survey");
  }
  EXPECT_EQ(late_surveys_, 1);
  new_.Tell(AtGate());
  Await([&] { return manager_->Show().programs[0].wanted_since.has_value(); }, "the wish");
  EXPECT_EQ(swaps_, 0) << "it cannot be suspended";
  // "old" sorts after "new".
  EXPECT_NE(manager_->Show().programs[1].problem, "");
  old_.Continue();
  Await([&] { return StateOf("new") == State::kAwake; }, "the resume");
  EXPECT_EQ(late_surveys_, 1);
  EXPECT_EQ(manager_->Show().programs[1].problem, "");
}

TEST_F(ManagerTest, AnAgentThatDisconnectsIsConnectedAgain) {
  Start();
  AwaitConnected();
  new_.Disconnect();
  Await(
      [&] {
        std::lock_guard lock(new_.mutex);
        return new_.connections >= 2 && new_.connected;
      },
      "the second connection");
}

TEST_F(ManagerTest, AgentsAreDisconnectedDuringADump) {
  Start();
  AwaitConnected();
  std::atomic<bool> begun{false};
  bool was_connected = true, returns = false;
  const uint64_t token = manager_->BeginByHand("new", Hand::kOther, [&] {
    {
      std::lock_guard lock(new_.mutex);
      was_connected = new_.connected;
      returns = new_.returns;
    }
    begun = true;
  });
  Await([&] { return begun.load(); }, "the dump");
  EXPECT_FALSE(was_connected);
  EXPECT_TRUE(returns) << "allocations that wait would fail";
  const int before = surveys_;
  manager_->Refresh();
  Await([&] { return surveys_ > before; }, "a survey");
  {
    std::lock_guard lock(new_.mutex);
    EXPECT_FALSE(new_.connected);
  }
  manager_->EndByHand(token, true);
  AwaitConnected();
}

TEST_F(ManagerTest, AnAgentThatTakesNoAnswersIsConnectedAgain) {
  programs_["new"].state = State::kAwake;
  programs_["new"].memory["gpu0"].data = 10;
  new_.takes_answers = false;
  Start();
  AwaitConnected();
  new_.Tell(Asks(4, 5));
  Await(
      [&] {
        std::lock_guard lock(new_.mutex);
        return new_.connections >= 2 && new_.connected;
      },
      "the second connection");
}

TEST_F(ManagerTest, OneWhoWatchesSeesTheChange) {
  Start();
  AwaitConnected();
  const uint64_t version = manager_->Show().version;
  std::atomic<bool> changed{false};
  manager_->OnChange(version, [&] { changed = true; });
  ASSERT_TRUE(manager_->Pin("old", true));
  Await([&] { return changed.load(); }, "the change");
  EXPECT_NE(manager_->Show().version, version);
  EXPECT_FALSE(manager_->Pin("nobody", true));
  EXPECT_EQ(manager_->ProgramOf(own_.pid), "new");
}

}  // namespace
}  // namespace stasis::sharing
