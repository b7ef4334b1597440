// Runs a Coordinator: keeps a connection to the agents of all programs that share GPUs, and starts
// surveys and swaps. One thread waits for their events and for one timer.
//
// Everything outside is behind interfaces. Safe to use from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent_client/agent_watch.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/thread.h"
#include "process/proc.h"
#include "sharing/coordinator.h"
#include "sharing/silences.h"

namespace stasis::sharing {

// A survey, and what the manager needs to watch its programs.
struct SurveyAnswer {
  Survey survey;  // `began` is ignored
  struct Watchable {
    std::vector<process::ProcessId> roots;      // a program may change when one of them ends
    std::vector<process::ProcessId> processes;  // those that use a GPU and have an agent
    // A file that an agent touches when its process begins to use a GPU; empty if there is none.
    std::string signal_file;
  };
  // May have programs that do not share GPUs: a survey follows when they change.
  std::map<std::string, Watchable> programs;
};

class Surveys {
 public:
  virtual ~Surveys() = default;
  // Calls `done` once, from any thread. An error means that nothing is known. The programs in
  // `silent` did not answer an earlier survey: they must not be asked, and count as silent again.
  virtual void Start(const std::set<std::string>& silent,
                     std::function<void(Result<SurveyAnswer>)> done) = 0;
};

class Swaps {
 public:
  virtual ~Swaps() = default;
  // Calls `done` once, from any thread.
  virtual void Start(const Plan::Swap& swap, std::function<void(SwapResult)> done) = 0;
};

class Manager {
 public:
  struct Outside {
    agent_client::AgentWatches& watches;
    Surveys& surveys;
    Swaps& swaps;
    // Keeps what a later manager needs. May be empty.
    std::function<void(const std::map<std::string, Saved>&)> save;
    // Converts a GPU's UUID to the names in surveys.
    std::function<std::string(const agent_protocol::Uuid&)> gpu_name;
  };

  // The interfaces must outlive the object.
  static Result<std::unique_ptr<Manager>> Start(Outside outside, const Limits& limits,
                                                const std::map<std::string, Saved>& saved);
  // Waits for surveys and swaps in progress. Questions that wait are not answered.
  ~Manager();

  // Programs may have started, ended or changed.
  void Refresh();

  // Calls `begin` when an operation by hand may begin: at once, or when a swap of the program has
  // ended, or, for a resume, when there is room. If `hand` is kOther, the agents are disconnected
  // before, and connected again after EndByHand. Returns a token for EndByHand.
  uint64_t BeginByHand(const std::string& id, Hand hand, std::function<void()> begin);
  void EndByHand(uint64_t token, bool ok);

  // Returns false if the program does not share GPUs.
  bool Pin(const std::string& id, bool pinned);
  bool IsShared(const std::string& id);
  // Returns the program to which a process belongs, or an empty string.
  std::string ProgramOf(process::HostPid pid);
  // Calls `done` once, from another thread, with whether the data of all programs and `bytes` more
  // fit into host memory. Programs may have grown, and others may have ended, so it waits for a new
  // survey, at most for `limit`. Several that wait share one survey.
  void AskHostRoom(uint64_t bytes, Time limit, std::function<void(bool)> done);

  struct Picture {
    uint64_t version = 0;
    Time now{0};
    std::vector<View> programs;
  };
  Picture Show();
  // Calls `changed` once, when the picture's version is not `version` any more.
  void OnChange(uint64_t version, std::function<void()> changed);

 private:
  // Before the first new attempt to connect to an agent.
  static constexpr std::chrono::milliseconds kFirstRetry{50};
  // How often the use of the GPUs is read while a program is suspended: more often than
  // Settings::idle_after, or a program that is in use would seem idle.
  static constexpr std::chrono::milliseconds kSampleInterval{500};

  using Work = std::vector<std::function<void()>>;
  struct Process {
    std::string program;
    process::ProcessId id;
    std::unique_ptr<agent_client::AgentWatch> watch;
    bool connecting = false;
    int attempts = 0;  // without success
    Time retry_at{0};
  };
  struct HandWork {
    std::string id;
    Hand hand;
    std::function<void()> begin;  // empty once called
    bool released = false;
  };

  struct RoomQuestion {
    uint64_t survey;  // it waits for the end of this one
    Time until;
    uint64_t bytes;
    std::function<void(bool)> done;
  };

  Manager(Outside outside, const Limits& limits)
      : outside_(std::move(outside)), coordinator_(limits) {}
  void Run();
  void Wake() const;
  // The following functions need `mutex_`. They add calls to `work`, which is done without it.
  void Step(Work& work);
  void ReadWatches(Work& work);
  void ConnectWatches(Work& work, Time now);
  void DropWatch(Process& process, Work& work);
  void SampleUse(Time now);
  void Carry(const Plan& plan, Work& work);
  void BeginReleased(HandWork& hand, Work& work);
  void WatchPrograms(const SurveyAnswer& answer);
  void AddSignalFile(const std::string& path);
  void StartSurvey(Work& work, Time now);
  void SurveyEnded(Time began, const std::set<std::string>& silent, Result<SurveyAnswer> answer);
  void NoteSilence(const std::set<std::string>& not_asked, const SurveyAnswer& answer);
  std::optional<bool> HasAnswered(const std::string& id, Time since) const;  // see Silences::End
  bool IsInOtherHands(const std::string& id) const;
  void AnswerRoomQuestions(Work& work, Time now);
  void Changed(Work& work);
  // Runs `task` in a thread of its own, or in this one if none can be started.
  void InBackground(std::function<void()> task);
  void TaskEnded();
  static Time Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

  const Outside outside_;
  UniqueFd wake_;     // an eventfd
  UniqueFd inotify_;  // for signal files
  std::mutex mutex_;
  std::condition_variable idle_;
  Coordinator coordinator_;
  std::map<uint64_t, Process> processes_;  // by pid
  std::map<process::ProcessId, UniqueFd> roots_;
  struct SignalFile {
    int number = -1;      // inotify's; -1: not watched
    bool adding = false;  // a thread of its own does, because the file system may hang
    Time retry_at{0};
  };
  std::map<std::string, SignalFile> signal_files_;
  bool touched_ = false;  // a signal file, and no survey has begun since
  Time touch_surveyed_{0};
  std::map<std::string, SurveyAnswer::Watchable> watchable_;
  Silences silences_;
  std::map<uint64_t, HandWork> hands_;
  uint64_t next_token_ = 1;
  bool survey_wanted_ = true;
  bool survey_runs_ = false;
  bool surveyed_ = false;  // once at least
  uint64_t surveys_begun_ = 0, surveys_ended_ = 0;
  std::vector<RoomQuestion> room_questions_;
  int tasks_ = 0;                   // surveys, swaps and background threads that have not ended
  Work later_;                      // for the next step
  std::optional<Time> decide_at_;   // the decision may change then
  std::optional<Time> look_again_;  // the next time at which there is anything to do
  Time sampled_{0};
  uint64_t version_ = 1;
  std::vector<std::pair<uint64_t, std::function<void()>>> on_change_;
  std::map<std::string, Saved> saved_;
  bool ending_ = false;
  Thread thread_;
};

}  // namespace stasis::sharing
