// The launcher of a member.
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>

#include "base/rights.h"
#include "slurm/node_files.h"
#include "slurm/task.h"
#include "slurm/together_task.h"
#include "slurm/watch.h"

namespace stasis::slurm {
namespace {

// The leader gets them too, and acts for all tasks.
bool IsForLeader(int signal) { return signal == SIGTERM || signal == SIGTSTP || signal == SIGCONT; }

class MemberTask {
 public:
  MemberTask(const TaskOptions& options, TogetherTask& task) : options_(options), task_(task) {}

  Result<int> Run() {
    auto code = RunProgram();
    // The files of a launcher that was rejected may belong to another one.
    if (!has_begun_ && !is_rejected_ && options_.restarts == 0) task_.files.Remove();
    return code;
  }

 private:
  Result<int> RunProgram() {
    // The root process renames the file of the exit code into its place, and the leader its socket.
    STASIS_ASSIGN(watch_, Watch(task_.meeting.folder, IN_MOVED_TO));
    Status joined = Join();
    if (!joined && is_ended_) return kDumpedExitCode;  // as a task that has not begun
    STASIS_TRY(joined);
    while (!code_) {
      STASIS_TRY(Await());
      task_.output.Copy();
      ReadSignals();
      ReadNews();
    }
    task_.CopyAllOutput();
    return *code_;
  }

  Status Join() {
    auto stops = [this] {
      ReadSignals();
      return is_ended_;
    };
    STASIS_ASSIGN(leader_, NodeMember::Join(task_.meeting, options_.job, options_.place.local,
                                            watch_, task_.Waiting(stops)));
    for (const int signal : signals_) leader_->SendSignal(signal);
    return {};
  }

  Status Await() {
    std::vector<pollfd> polls = {
        {task_.signals.fd(), POLLIN, 0}, {leader_->fd(), POLLIN, 0}, {watch_.get(), POLLIN, 0}};
    task_.output.AddTo(polls);
    if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) {
      return FailErrno(errno, "poll");
    }
    return {};
  }

  void ReadSignals() {
    for (const int signal : task_.signals.Read()) {
      if (IsForLeader(signal)) {
        is_ended_ |= signal == SIGTERM;
      } else if (leader_) {
        leader_->SendSignal(signal);
      } else {
        signals_.push_back(signal);
      }
    }
  }

  void ReadNews() {
    ForgetEvents(watch_);
    const NodeMember::News news = leader_->Read();
    // Before kBegun the file may be of an earlier start.
    has_begun_ |= news.begun;
    if (has_begun_) code_ = ReadCode(task_.files.path());
    if (news.end_code) code_ = news.end_code;
    is_rejected_ |= !news.rejected.empty();
    if (code_ || !(news.leader_ended || is_rejected_)) return;
    if (!has_begun_ && is_ended_) {
      code_ = kDumpedExitCode;  // as a task that has not begun
      return;
    }
    const std::string first = "the launcher of the first task of the step on this node has ";
    Note(task_.files, first + (is_rejected_ ? "rejected this one: " + news.rejected
                                            : "ended, so the task ends"));
    code_ = 1;
  }

  const TaskOptions& options_;
  TogetherTask& task_;
  UniqueFd watch_;
  std::optional<NodeMember> leader_;
  std::vector<int> signals_;  // that came before the leader
  bool is_ended_ = false;     // by SIGTERM
  bool has_begun_ = false;
  bool is_rejected_ = false;
  std::optional<int> code_;
};

}  // namespace

Result<int> RunMember(const TaskOptions& options, TogetherTask& task) {
  EndPidns(options);  // the leader's has all programs
  DropRights();
  return MemberTask(options, task).Run();
}

}  // namespace stasis::slurm
