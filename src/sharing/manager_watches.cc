// The connections to the agents of programs that share GPUs, and the files with which they announce
// their first use of a GPU.
#include <sys/inotify.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "sharing/manager.h"

namespace stasis::sharing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectTimeout{2000};
constexpr int kMostDoublings = 9;  // of the time until the next retry
constexpr int kMostNews = 8;       // of a process in one step
constexpr std::chrono::seconds kRetrySignalFile{10};

}  // namespace

void Manager::ReadWatches(Work& work) {
  for (auto& [pid, process] : processes_) {
    // Bounded, because an untrusted process may send without an end. The rest is read in the next
    // step.
    for (int i = 0; i < kMostNews && process.watch != nullptr; ++i) {
      auto wants = process.watch->Receive();
      if (!wants) {
        log::Write(log::Level::kDebug, "the agent of a shared program has disconnected",
                   {{"program", process.program}, {"pid", uint64_t{pid}}});
        DropWatch(process, work);
        process.retry_at = Now() + kFirstRetry;
        ++version_;
        break;
      }
      if (process.watch->use().answered != agent_client::AgentUse::Clock::time_point()) {
        coordinator_.SetUsed(process.program, process.watch->use().last_use.time_since_epoch());
      }
      if (!*wants) break;
      Want want;
      want.at_gate = (*wants)->thread_at_gate;
      if (const auto& allocation = (*wants)->allocation) {
        want.allocation = Allocation{allocation->number, allocation->bytes,
                                     outside_.gpu_name(allocation->gpu), allocation->attempts};
      }
      coordinator_.SetWant(process.program, pid, want, Now());
      ++version_;
    }
  }
}

void Manager::DropWatch(Process& process, Work& work) {
  if (process.watch == nullptr) return;
  coordinator_.Disconnected(process.program, static_cast<uint64_t>(process.id.pid.value));
  // The destructor may wait.
  auto watch = std::make_shared<std::unique_ptr<agent_client::AgentWatch>>();
  *watch = std::move(process.watch);
  ++tasks_;
  work.emplace_back([this, watch] { InBackground([watch] { watch->reset(); }); });
}

bool Manager::IsInOtherHands(const std::string& id) const {
  return std::any_of(hands_.begin(), hands_.end(), [&](const auto& entry) {
    return entry.second.id == id && entry.second.hand == Hand::kOther && entry.second.released;
  });
}

void Manager::ConnectWatches(Work& work, Time now) {
  for (auto& [pid, process] : processes_) {
    if (process.watch != nullptr || process.connecting || process.retry_at > now ||
        IsInOtherHands(process.program)) {
      continue;
    }
    process.connecting = true;
    ++tasks_;
    work.emplace_back([this, pid = pid, id = process.id] {
      InBackground([this, pid, id] {
        auto watch = outside_.watches.Connect(id.pid, kConnectTimeout);
        if (!watch) {
          log::Fields fields = {{"pid", pid}};
          for (auto& field : log::ErrorFields(watch.error())) fields.push_back(std::move(field));
          log::Write(log::Level::kDebug, "cannot watch the agent of a shared program", fields);
        }
        std::unique_ptr<agent_client::AgentWatch> refused;  // destroyed without the lock
        std::lock_guard lock(mutex_);
        auto found = processes_.find(pid);
        if (found == processes_.end() || found->second.id != id) {
          if (watch) refused = std::move(*watch);
          return;
        }
        Process& known = found->second;
        known.connecting = false;
        if (watch && process::IsAlive(id)) {
          known.watch = std::move(*watch);
          known.attempts = 0;
          return;
        }
        if (watch) refused = std::move(*watch);
        const Time pause = Time(kFirstRetry) * (1 << std::min(known.attempts++, kMostDoublings));
        known.retry_at = Now() + pause;
      });
    });
  }
}

void Manager::SampleUse(Time now) {
  bool asleep = false, awake = false;
  const std::vector<View> views = coordinator_.Show();
  for (const View& view : views) {
    (view.facts.state == State::kAwake ? awake : asleep) = true;
  }
  // Without a program that sleeps or waits, no program has to leave.
  if (!awake || (!asleep && !coordinator_.AnyWaits())) {
    sampled_ = Time{0};
    return;
  }
  const bool ask = sampled_ == Time{0} || now - sampled_ >= kSampleInterval;
  if (!ask) return;
  sampled_ = now;
  for (auto& [pid, process] : processes_) {
    // The answer is read with the agent's news. An error is found there too.
    if (process.watch != nullptr) (void)process.watch->AskUse();
  }
}

void Manager::WatchPrograms(const SurveyAnswer& answer) {
  watchable_ = answer.programs;
  std::map<uint64_t, Process> before = std::move(processes_);
  processes_.clear();
  std::map<process::ProcessId, UniqueFd> roots;
  std::map<std::string, SignalFile> files;
  for (const auto& [id, program] : answer.programs) {
    for (const process::ProcessId& one : program.processes) {
      const auto pid = static_cast<uint64_t>(one.pid.value);
      auto known = before.find(pid);
      if (known != before.end() && known->second.id == one) {
        processes_[pid] = std::move(known->second);
        processes_[pid].program = id;
        if (processes_[pid].watch == nullptr) processes_[pid].attempts = 0;
        before.erase(known);
      } else {
        processes_[pid] = Process{id, one, nullptr, false, 0, Time{0}};
      }
    }
    for (const auto* list : {&program.roots, &program.processes}) {
      for (const process::ProcessId& one : *list) {
        if (roots.contains(one)) continue;
        if (auto open = roots_.find(one); open != roots_.end()) {
          roots[one] = std::move(open->second);
        } else if (auto pidfd = process::OpenPidfd(one)) {
          roots[one] = std::move(*pidfd);
        }
      }
    }
    if (program.signal_file.empty()) continue;
    auto watched = signal_files_.find(program.signal_file);
    files[program.signal_file] = watched != signal_files_.end() ? watched->second : SignalFile();
  }
  for (const auto& [path, file] : signal_files_) {
    if (files.contains(path) || file.number < 0) continue;
    (void)::inotify_rm_watch(inotify_.get(), file.number);
  }
  signal_files_ = std::move(files);
  for (auto& [path, file] : signal_files_) {
    if (file.number < 0 && !file.adding && file.retry_at <= Now()) {
      file.adding = true;
      ++tasks_;
      later_.emplace_back(
          [this, path = path] { InBackground([this, path] { AddSignalFile(path); }); });
    }
  }
  roots_ = std::move(roots);
  // A process that the survey did not name may belong to a program that an operation works on.
  for (auto& [pid, process] : before) {
    auto program = answer.survey.programs.find(process.program);
    const bool unknown = program != answer.survey.programs.end() && !program->second;
    if (unknown && process::IsAlive(process.id)) {
      processes_[pid] = std::move(process);
      continue;
    }
    coordinator_.Disconnected(process.program, pid);
    DropWatch(process, later_);
  }
}

void Manager::AddSignalFile(const std::string& path) {
  const int number = ::inotify_add_watch(inotify_.get(), path.c_str(), IN_ATTRIB | IN_DONT_FOLLOW);
  std::lock_guard lock(mutex_);
  auto found = signal_files_.find(path);
  if (found == signal_files_.end()) {
    if (number >= 0) (void)::inotify_rm_watch(inotify_.get(), number);
    return;
  }
  found->second = {number, false, Now() + kRetrySignalFile};
  // A process may have begun to use a GPU after the survey and before the watch.
  if (number >= 0) survey_wanted_ = true;
}

}  // namespace stasis::sharing
