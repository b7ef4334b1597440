#include "slurm/task.h"

#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace stasis::slurm {
namespace {

using nlohmann::json;

// Exit code of a command whose target is busy with another operation.
constexpr int kBusyCode = 7;
using Words = std::vector<std::string>;

// Returns a member of a JSON object; null if there is none.
json Member(const json& document, const char* name) {
  return document.is_object() && document.contains(name) ? document[name] : json();
}

// Returns null if the text is not JSON.
json Parse(const std::string& text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

// Returns true if the program exists, so that it can be dumped or get a signal.
bool Task::Job::HasProgram() const {
  return state == "running" || state == "suspended" || state == "failed";
}

Task::Job Task::ReadJob() {
  const json document = Parse(commands_.Ask({"inspect", options_.job}));
  const json state = Member(document, "state"), code = Member(document, "code");
  Job job;
  if (state.is_string()) job.state = state;
  if (code.is_number_integer()) job.code = code;
  return job;
}

// Slurm starts a task again only after its last step has ended. A node that has failed could not
// record that.
Task::Job Task::ReadEarlierJob() {
  Job job = ReadJob();
  if (job.state != "elsewhere") return job;
  commands_.Run({"kill", "--lost", options_.job});
  return ReadJob();
}

// A detached program would be killed at the end of the task.
Words Task::WordsToRun() const {
  return {"run", "--attach", "--detach-keys", "none", "--job", options_.job};
}

// Returns the words of the command that continues or starts a requeued task, before `--`.
Words Task::WordsToContinue() {
  const Job job = ReadEarlierJob();
  began_ended_ = job.state == "exited";
  const bool has_images = !Images().empty();
  if (has_images && job.state == "exited" && job.code == 0) {
    // It did not finish by itself, because then it would have no images: it has handled a SIGTERM
    // after a dump that failed.
    return {"restore", "--attach", "--detach-keys", "none", "--gpu-map", "auto", options_.job};
  }
  // If all of its images were deleted, the command refuses to start it, and says so.
  if (!WasDumped()) {
    commands_.Note("the task starts over, because job " + options_.job + " has no image");
  }
  Words words = WordsToRun();
  words.insert(words.end(), {"--or-restore", "--gpu-map", "auto"});
  return words;
}

// Finds out before the start what would fail at the first dump, or at the restore after it.
Status Task::CheckRepository() {
  const std::string& name = options_.user.to;
  if (name.empty()) return {};
  const json known = Parse(commands_.Ask({"repo", "ls"}));
  bool trusted = false;
  for (const json& repository : Member(known, "repositories")) {
    if (Member(repository, "name") == name) trusted = Member(repository, "trusted") == true;
  }
  if (!trusted) {
    return Fail(Code::kFailedPrecondition,
                "images of repository " + name + " would not be restored after a requeue",
                "add it with `stasis repo add --trust " + name + " LOCATION`");
  }
  if (commands_.Run({"repo", "check", name}) == 0) return {};
  return Fail(Code::kUnavailable, "images cannot be written to repository " + name,
              "`stasis repo check " + name + "` must succeed");
}

// The option of the task decides, and without it the configuration.
bool Task::WantsReserve() {
  if (options_.user.reserve) return *options_.user.reserve;
  const json document = Parse(commands_.Ask({"config", "show"}));
  const json settings = Member(document, "settings");
  return std::any_of(settings.begin(), settings.end(), [](const json& setting) {
    return Member(setting, "key") == "arena.reserve" && Member(setting, "value") == "auto";
  });
}

void Task::Reserve() {
  if (reserves_) commands_.StartReserve({"arena", "ready", "--wait", options_.job});
}

Status Task::Begin(const Words& environment) {
  reserves_ = WantsReserve();
  STASIS_TRY(Start(environment));
  Reserve();
  return {};
}

Status Task::Start(const Words& environment) {
  Words words = WordsToRun();
  if (options_.restarts > 0) {
    words = WordsToContinue();
  } else {
    STASIS_TRY(CheckRepository());
    // The numbers of Slurm's jobs start again when a cluster is set up anew.
    if (ReadEarlierJob().state != "absent") commands_.Run({"delete", options_.job});
  }
  if (words[0] == "restore") return commands_.StartAttached(words);
  for (const std::string& variable : environment) {
    words.insert(words.end(), {"--env", variable});
  }
  words.emplace_back("--");
  words.insert(words.end(), options_.program.begin(), options_.program.end());
  return commands_.StartAttached(words);
}

void Task::OnSignal(int signal) {
  if (exit_code_) return;
  switch (signal) {
    case SIGTERM:
      Terminate();
      break;
    case SIGTSTP:
      if (suspended_ || dumped_) break;
      commands_.CancelBackground();
      commands_.StopReserve();
      suspended_ = commands_.Run({"suspend", options_.job}) == 0;
      // Ends the mover, whose context would stay on the GPU.
      if (suspended_ && reserves_) commands_.Run({"arena", "free", "--keep-of-running"});
      if (!suspended_) Reserve();
      break;
    case SIGCONT:
      // Slurm also sends SIGCONT before each SIGTERM.
      if (!suspended_ || dumped_) break;
      suspended_ = commands_.Run({"resume", options_.job}) != 0;
      if (!suspended_) Reserve();
      break;
    default:
      if (!dumped_) SignalProgram(signal);
  }
}

void Task::OnTimer() {
  if (suspended_ || dumped_ || terminating_ || exit_code_ || !ReadJob().HasProgram()) return;
  commands_.StartBackground(WordsToDump(/*leave_running=*/true));
}

void Task::OnAttachedEnd(int code) {
  if (exit_code_) return;
  commands_.CancelBackground();
  if (code == 0 && !dumped_ && !terminating_) code = Finish();
  End(dumped_ ? kDumpedExitCode : code);
}

// Returns the exit code of a task whose attached command has ended without an error.
int Task::Finish() {
  const Job job = ReadJob();
  if (job.HasProgram()) {
    // The command has lost its terminal, or the reader of its output. Slurm kills the program when
    // this task ends.
    commands_.StopReserve();
    Dump();
    return 1;
  }
  if (job.state == "exited" && job.code == 0) DeleteImages();
  return 0;
}

void Task::End(int code) {
  // Stasis keeps unused arenas for the next suspend. Their memory would stay charged to the job's
  // control group, and the next job on the node needs it. Other tasks of the user keep theirs.
  commands_.StopReserve();
  commands_.Run({"arena", "free", "--keep-of-running"});
  exit_code_ = code;
}

// A restore takes the treatment of TCP connections from the image.
Words Task::WordsToDump(bool leave_running) const {
  Words words = {"dump"};
  if (leave_running) words.emplace_back("--leave-running");
  words.push_back(options_.job);
  if (options_.user.to.empty()) {
    words.insert(words.end(), {"--keep", std::to_string(options_.user.keep)});
  } else {
    words.insert(words.end(), {"--to", options_.user.to});
  }
  if (!options_.user.tcp.empty()) words.insert(words.end(), {"--tcp", options_.user.tcp});
  return words;
}

bool Task::Dump() {
  dump_code_ = commands_.Run(WordsToDump(/*leave_running=*/false));
  // The dump may have succeeded although a later step has failed, such as a copy to a repository.
  dumped_ = dump_code_ == 0 || ReadJob().state == "dumped";
  return dumped_;
}

void Task::Terminate() {
  if (dumped_) return;
  if (terminating_) return SignalProgram(SIGTERM);
  commands_.CancelBackground();
  commands_.StopReserve();
  if (!ReadJob().HasProgram()) return StopStart();
  // Empties the GPU before the image is written, which takes longer. The reason of a failure is
  // that of the dump too, which shows it.
  if (!suspended_) suspended_ = !commands_.Ask({"suspend", options_.job}).empty();
  if (Dump()) return;
  // The program runs already, but its restore may not have ended.
  if (dump_code_ == kBusyCode && options_.restarts > 0) return StopStart();
  terminating_ = true;
  commands_.Note(
      "the dump failed, so the program gets SIGTERM. Its state is lost unless it saves it itself");
  // A suspended program could not use its GPU to shut down.
  if (suspended_) suspended_ = commands_.Run({"resume", options_.job}) != 0;
  SignalProgram(SIGTERM);
}

// Ends a start or restore in progress. An image from which it was restored is left as it was.
void Task::StopStart() {
  commands_.KillAttached();
  commands_.Run({"recover"});
  const Job job = ReadJob();
  if (job.state == "exited" && job.code && !began_ended_) {  // it had just ended by itself
    if (*job.code == 0) DeleteImages();
    return End(*job.code);
  }
  // If the dump fails, Slurm kills what is left of the program when this task ends.
  if (job.HasProgram() && !Dump()) SignalProgram(SIGTERM);
  End(kDumpedExitCode);
}

void Task::SignalProgram(int signal) {
  commands_.Run({"kill", "--only", "--signal", std::to_string(signal), options_.job});
}

bool Task::WasDumped() {
  const json checkpoints =
      Member(Parse(commands_.Ask({"checkpoints", options_.job})), "checkpoints");
  return std::any_of(checkpoints.begin(), checkpoints.end(),
                     [](const json& one) { return Member(one, "kind") == "dump"; });
}

// Returns the images of the job that exist, here or in a repository.
Words Task::Images() {
  Words images;
  const json document = Parse(commands_.Ask({"checkpoints", options_.job}));
  for (const json& checkpoint : Member(document, "checkpoints")) {
    const json image = Member(checkpoint, "image"), copy = Member(checkpoint, "copy");
    if (Member(checkpoint, "exists") == true && image.is_string()) {
      images.push_back(image);
    } else if (copy.is_string()) {
      images.push_back(copy);
    }
  }
  return images;
}

void Task::DeleteImages() {
  for (const std::string& image : Images()) commands_.Run({"image", "delete", image});
  commands_.Run({"delete", options_.job});
}

}  // namespace stasis::slurm
