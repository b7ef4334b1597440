#include "sharing/manager.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace stasis::sharing {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kRetrySurvey{1};
// A program may touch its signal file all the time.
constexpr milliseconds kTouchInterval{250};

}  // namespace

Result<std::unique_ptr<Manager>> Manager::Start(Outside outside, const Limits& limits,
                                                const std::map<std::string, Saved>& saved) {
  std::unique_ptr<Manager> manager(new Manager(std::move(outside), limits));
  manager->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!manager->wake_) return FailErrno(errno, "eventfd");
  manager->inotify_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!manager->inotify_) return FailErrno(errno, "inotify_init");
  for (const auto& [id, one] : saved) manager->coordinator_.Restore(id, one);
  manager->saved_ = saved;
  STASIS_ASSIGN(manager->thread_, Thread::Start([m = manager.get()] { m->Run(); }));
  return manager;
}

Manager::~Manager() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  Wake();
  thread_.Join();
  std::unique_lock lock(mutex_);
  while (tasks_ > 0) {
    // The end of a survey may plan work. It counts as a task, and the thread no longer does it.
    Work work = std::exchange(later_, {});
    lock.unlock();
    for (auto& call : work) call();
    lock.lock();
    idle_.wait(lock, [this] { return tasks_ == 0 || !later_.empty(); });
  }
}

void Manager::Wake() const {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Manager::Refresh() {
  {
    std::lock_guard lock(mutex_);
    survey_wanted_ = true;
  }
  Wake();
}

void Manager::InBackground(std::function<void()> task) {
  auto run = [this, task = std::move(task)] {
    task();
    TaskEnded();
  };
  if (auto thread = Thread::Start(run)) {
    std::move(*thread).Detach();
  } else {
    run();
  }
}

void Manager::TaskEnded() {
  std::lock_guard lock(mutex_);
  --tasks_;
  Wake();
  // Under the lock, because the destructor may run as soon as it sees the count.
  idle_.notify_all();
}

void Manager::Run() {
  std::vector<pollfd> waits;
  for (;;) {
    Work work;
    int timeout_ms = -1;
    waits = {{wake_.get(), POLLIN, 0}, {inotify_.get(), POLLIN, 0}};
    {
      std::lock_guard lock(mutex_);
      if (ending_) return;
      Step(work);
      for (const auto& [pid, process] : processes_) {
        if (process.watch != nullptr) waits.push_back({process.watch->fd(), POLLIN, 0});
      }
      for (const auto& [id, pidfd] : roots_) waits.push_back({pidfd.get(), POLLIN, 0});
      if (look_again_) {
        const Time left = std::max(Time{0}, *look_again_ - Now());
        const auto ms = std::chrono::ceil<milliseconds>(left).count();
        timeout_ms = static_cast<int>(std::min<int64_t>(ms, 3'600'000));
      }
    }
    for (auto& call : work) call();
    (void)::poll(waits.data(), waits.size(), timeout_ms);
    char bytes[4096];
    while (::read(wake_.get(), bytes, sizeof bytes) > 0) {
    }
    bool touched = false;
    while (::read(inotify_.get(), bytes, sizeof bytes) > 0) touched = true;
    std::lock_guard lock(mutex_);
    touched_ |= touched;
    if (decide_at_ && *decide_at_ <= Now()) coordinator_.TimeHasCome(Now());
    std::erase_if(roots_, [&](const auto& root) {
      pollfd end{root.second.get(), POLLIN, 0};
      const bool ended = ::poll(&end, 1, 0) > 0;
      survey_wanted_ |= ended;
      return ended;
    });
  }
}

void Manager::Step(Work& work) {
  const Time now = Now();
  work.swap(later_);
  look_again_.reset();
  auto look_again_at = [this](Time time) {
    look_again_ = std::min(time, look_again_.value_or(time));
  };
  ReadWatches(work);
  SampleUse(now);
  ConnectWatches(work, now);
  const Plan plan = coordinator_.Next(now);
  Carry(plan, work);
  if (touched_ && now >= touch_surveyed_ + kTouchInterval) {
    touched_ = false;
    survey_wanted_ = true;
    touch_surveyed_ = now;
  }
  if (touched_) look_again_at(touch_surveyed_ + kTouchInterval);
  const auto silences = silences_.End(
      [this](const std::string& id, Time since) { return HasAnswered(id, since); }, now);
  survey_wanted_ |= silences.any;
  if (silences.next) look_again_at(*silences.next);
  if ((survey_wanted_ || plan.survey) && !survey_runs_) StartSurvey(work, now);
  decide_at_ = plan.look_again;
  if (decide_at_) look_again_at(*decide_at_);
  for (const auto& [pid, process] : processes_) {
    if (process.watch == nullptr && process.retry_at > now) look_again_at(process.retry_at);
  }
  if (sampled_ != Time{0}) look_again_at(sampled_ + kSampleInterval);
  AnswerRoomQuestions(work, now);
  Changed(work);
}

void Manager::StartSurvey(Work& work, Time now) {
  survey_wanted_ = false;
  survey_runs_ = true;
  ++surveys_begun_;
  ++tasks_;
  const std::set<std::string> silent = silences_.Lasting();
  work.emplace_back([this, now, silent] {
    outside_.surveys.Start(silent, [this, now, silent](Result<SurveyAnswer> answer) {
      SurveyEnded(now, silent, std::move(answer));
    });
  });
}

void Manager::NoteSilence(const std::set<std::string>& not_asked, const SurveyAnswer& answer) {
  silences_.Forget([&](const std::string& id) { return answer.programs.contains(id); });
  const auto begun = silences_.Note(not_asked, answer.survey.silent, Now());
  for (auto& [pid, process] : processes_) {
    // The answer is the event that ends the silence.
    if (begun.contains(process.program) && process.watch != nullptr) (void)process.watch->AskUse();
  }
}

std::optional<bool> Manager::HasAnswered(const std::string& id, Time since) const {
  std::optional<bool> all;
  for (const auto& [pid, process] : processes_) {
    // A watch has an answer as soon as it is connected.
    if (process.program != id || process.watch == nullptr) continue;
    const bool answered = process.watch->use().answered.time_since_epoch() > since;
    all = all.value_or(true) && answered;
  }
  return all;
}

// Hands the picture to those that wait for a change, and what must outlive this daemon to `save`.
void Manager::Changed(Work& work) {
  std::map<std::string, Saved> saved;
  for (const View& view : coordinator_.Show()) saved[view.id] = view.saved;
  // Programs that no survey has named yet are not forgotten.
  if (saved != saved_ && surveyed_ && !survey_runs_) {
    saved_ = saved;
    if (outside_.save) work.emplace_back([this, saved] { outside_.save(saved); });
  }
  std::erase_if(on_change_, [&](auto& waiting) {
    if (waiting.first == version_) return false;
    work.push_back(std::move(waiting.second));
    return true;
  });
}

void Manager::Carry(const Plan& plan, Work& work) {
  for (const Plan::Answer& answer : plan.answers) {
    auto found = processes_.find(answer.process);
    if (found == processes_.end() || found->second.watch == nullptr) continue;
    ++version_;
    if (found->second.watch->Answer(answer.number, answer.try_again)) continue;
    // The allocation fails with the connection, or waits again on the next one.
    DropWatch(found->second, work);
    found->second.retry_at = Now() + kFirstRetry;
  }
  for (const Plan::Swap& swap : plan.swaps) {
    ++tasks_;
    ++version_;
    work.emplace_back([this, swap] {
      const Time began = Now();
      outside_.swaps.Start(swap, [this, id = swap.id, began](SwapResult result) {
        {
          std::lock_guard lock(mutex_);
          result.took = Now() - began;
          coordinator_.SwapEnded(id, result, Now());
          ++version_;
        }
        TaskEnded();
      });
    });
  }
  for (uint64_t token : plan.released) {
    auto found = hands_.find(token);
    if (found == hands_.end() || !found->second.begin) continue;
    found->second.released = true;
    ++version_;
  }
  for (auto& [token, hand] : hands_) BeginReleased(hand, work);
}

// Begins an operation by hand once no connection that would be in its way is being made.
void Manager::BeginReleased(HandWork& hand, Work& work) {
  if (!hand.released || !hand.begin) return;
  auto watches = std::make_shared<std::vector<std::unique_ptr<agent_client::AgentWatch>>>();
  if (hand.hand == Hand::kOther) {
    for (const auto& [pid, process] : processes_) {
      if (process.program == hand.id && process.connecting) return;
    }
    for (auto& [pid, process] : processes_) {
      if (process.program != hand.id || process.watch == nullptr) continue;
      coordinator_.Disconnected(hand.id, pid);
      // If this fails, so do the allocations that wait.
      (void)process.watch->WillReturn();
      watches->push_back(std::move(process.watch));
    }
  }
  ++tasks_;
  work.emplace_back([this, watches, begin = std::move(hand.begin)] {
    InBackground([watches, begin] {
      watches->clear();
      begin();
    });
  });
  hand.begin = nullptr;
}

void Manager::SurveyEnded(Time began, const std::set<std::string>& silent,
                          Result<SurveyAnswer> answer) {
  {
    std::lock_guard lock(mutex_);
    survey_runs_ = false;
    surveys_ended_ = surveys_begun_;
    if (answer) {
      answer->survey.began = began;
      surveyed_ = true;
      coordinator_.Apply(answer->survey, Now());
      WatchPrograms(*answer);
      NoteSilence(silent, *answer);
      ++version_;
    } else {
      log::Write(log::Level::kWarn, "cannot survey the programs that share GPUs",
                 log::ErrorFields(answer.error()));
    }
    Wake();
  }
  if (!answer) {
    // The cause is usually a limit. The pause keeps a busy machine from being asked in a loop.
    timespec pause{kRetrySurvey.count(), 0};
    ::nanosleep(&pause, nullptr);
    std::lock_guard lock(mutex_);
    survey_wanted_ = true;
  }
  TaskEnded();
}

uint64_t Manager::BeginByHand(const std::string& id, Hand hand, std::function<void()> begin) {
  uint64_t token = 0;
  {
    std::lock_guard lock(mutex_);
    token = next_token_++;
    hands_[token] = {id, hand, std::move(begin), false};
    coordinator_.HandBegan(token, id, hand, Now());
    ++version_;
  }
  Wake();
  return token;
}

void Manager::EndByHand(uint64_t token, bool ok) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = hands_.find(token); found != hands_.end()) {
      for (auto& [pid, process] : processes_) {
        if (process.program == found->second.id) process.attempts = 0;
      }
      hands_.erase(found);
    }
    coordinator_.HandEnded(token, ok, Now());
    survey_wanted_ = true;
    ++version_;
  }
  Wake();
}

bool Manager::Pin(const std::string& id, bool pinned) {
  std::lock_guard lock(mutex_);
  const bool found = coordinator_.Pin(id, pinned);
  ++version_;
  Wake();
  return found;
}

bool Manager::IsShared(const std::string& id) {
  std::lock_guard lock(mutex_);
  return coordinator_.IsShared(id);
}

std::string Manager::ProgramOf(process::HostPid pid) {
  std::lock_guard lock(mutex_);
  for (const auto& [id, program] : watchable_) {
    if (!coordinator_.IsShared(id)) continue;
    for (const auto* list : {&program.roots, &program.processes}) {
      for (const process::ProcessId& one : *list) {
        if (one.pid == pid) return id;
      }
    }
  }
  return "";
}

void Manager::AskHostRoom(uint64_t bytes, Time limit, std::function<void(bool)> done) {
  {
    std::lock_guard lock(mutex_);
    room_questions_.push_back({surveys_begun_ + 1, Now() + limit, bytes, std::move(done)});
    survey_wanted_ = true;
  }
  Wake();
}

void Manager::AnswerRoomQuestions(Work& work, Time now) {
  std::erase_if(room_questions_, [&](RoomQuestion& question) {
    if (surveys_ended_ < question.survey && now < question.until) {
      look_again_ = std::min(question.until, look_again_.value_or(question.until));
      return false;
    }
    work.emplace_back([done = std::move(question.done),
                       has_room = coordinator_.HasHostRoom(question.bytes)] { done(has_room); });
    return true;
  });
}

Manager::Picture Manager::Show() {
  std::lock_guard lock(mutex_);
  return {version_, Now(), coordinator_.Show()};
}

void Manager::OnChange(uint64_t version, std::function<void()> changed) {
  {
    std::lock_guard lock(mutex_);
    on_change_.emplace_back(version, std::move(changed));
  }
  Wake();
}

}  // namespace stasis::sharing
