#include "slurm/together_task.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "slurm/task_program.h"

extern char** environ;

namespace stasis::slurm {
namespace {

// From the start of the first launcher of the step to that of the last one.
constexpr std::chrono::seconds kMeetingLimit{60};

// Only one task could have the terminal or the pipe, and its program could not be restored with it.
Status UseNoInput() {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null || ::dup2(null.get(), STDIN_FILENO) < 0) return FailErrno(errno, "open /dev/null");
  return {};
}

}  // namespace

std::string NodeJobName(const std::string& task, int node) {
  return fmt::format("{}.n{}", task.substr(0, task.rfind('.')), node);
}

Status CheckSameTasks(const std::string& job, const std::vector<std::string>& before,
                      const std::vector<std::string>& now) {
  if (before.empty() || before == now) return {};
  return Fail(Code::kFailedPrecondition,
              fmt::format("the step has other tasks on this node than when job {} was started: {} "
                          "from {} on, not {} from {} on",
                          job, now.size(), now[0], before.size(), before[0]),
              "start the step with as many nodes, and tasks on each of them, as before");
}

int LeaderCode(int job, const std::vector<std::optional<int>>& codes) {
  const bool all_ended =
      std::all_of(codes.begin(), codes.end(), [](const auto& code) { return code.has_value(); });
  return all_ended && !codes.empty() ? *codes[0] : job;
}

Result<TogetherTask> TogetherTask::Prepare(const TaskOptions& options) {
  const bool has_terminal = ::isatty(STDIN_FILENO) != 0;
  STASIS_TRY(UseNoInput());
  STASIS_ASSIGN(TaskSignals signals, TaskSignals::Block());
  STASIS_ASSIGN(StepFiles files, StepFiles::Open(options.job, options.restarts, environ));
  STASIS_ASSIGN(std::vector<std::string> environment, PrepareEnvironment(files, options));
  STASIS_ASSIGN(const TaskProgram program, DescribeProgram(options.program, environment));
  STASIS_TRY(WriteTaskProgram(StartFile(files.path()), program));
  TogetherTask task{std::move(signals), std::move(files), std::move(environment), {}, {},
                    has_terminal};
  STASIS_TRY(task.output.Follow(OutputFile(task.files.path()), STDOUT_FILENO));
  // A program that was started with errors of its own has them after a requeue, too.
  const std::string errors = ErrorsFile(task.files.path());
  if (!program.one_output || PathExists(errors)) {
    STASIS_TRY(task.output.Follow(errors, STDERR_FILENO));
  }
  task.meeting.folder = task.files.folder();
  task.meeting.name = NodeJobName(options.job, options.place.node);
  task.meeting.restarts = options.restarts;
  task.meeting.count = options.place.count;
  return task;
}

NodeWait TogetherTask::Waiting(std::function<bool()> reads_signals) const {
  return {Deadline::In(kMeetingLimit), signals.fd(), std::move(reads_signals)};
}

void TogetherTask::CopyAllOutput() { output.CopyAll(Deadline::In(kLastWriteLimit)); }

Result<int> RunTogetherTask(TaskOptions options) {
  auto task = TogetherTask::Prepare(options);
  if (!task) {
    if (options.restarts == 0) (void)StepFiles::Open(options.job, 0, environ);  // removes files
    return Fail(std::move(task).error());
  }
  if (options.place.local == 0) return RunLeader(std::move(options), *task);
  return RunMember(options, *task);
}

}  // namespace stasis::slurm
