#include "slurm/step_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "slurm/node_files.h"

namespace stasis::slurm {
namespace {

constexpr std::string_view kSlurm = "SLURM";  // SLURM_JOB_ID, SLURMD_NODENAME

// Returns the value of a variable; empty if it is not set.
std::string ValueOf(char* const* environment, std::string_view name) {
  for (; *environment != nullptr; ++environment) {
    const std::string_view text = *environment;
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=')) {
      return std::string(text.substr(name.size() + 1));
    }
  }
  return "";
}

}  // namespace

Result<StepFiles> StepFiles::Open(const std::string& job, int restarts, char* const* environment) {
  std::string state = ValueOf(environment, "STASIS_STATE_DIR");
  if (state.empty()) {
    const std::string home = ValueOf(environment, "HOME");
    if (home.empty()) {
      return Fail(Code::kNotFound, "there is no folder for the files of the task", "set HOME");
    }
    state = home + "/.local/state/stasis";
  }
  const std::string folder = state + "/slurm";
  STASIS_TRY(MakeDirs(folder));
  StepFiles files;
  files.folder_ = folder;
  files.script_ = folder + "/" + job;
  files.variables_ = files.script_ + ".env";
  files.log_path_ = files.script_ + ".log";
  files.errors_path_ = files.script_ + ".err";
  files.is_requeued_ = restarts > 0;
  if (!files.is_requeued_) files.Remove();
  return files;
}

Result<std::string> StepFiles::KeepScript(const std::string& script) {
  // A restored shell needs the file unchanged.
  if (is_requeued_ && PathExists(script_)) return script_;
  STASIS_ASSIGN(const std::string text, ReadFile(script));
  STASIS_TRY(ReplaceFile(script_, text));
  if (::chmod(script_.c_str(), 0700) != 0) return FailErrno(errno, "chmod " + script_);
  return script_;
}

Result<std::string> StepFiles::WriteVariables(char* const* environment) {
  STASIS_TRY(RemoveTree(variables_));
  STASIS_TRY(MakeDirs(variables_));
  for (; *environment != nullptr; ++environment) {
    const std::string_view text = *environment;
    const size_t equals = text.find('=');
    if (!text.starts_with(kSlurm) || equals == text.npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (name.find('/') != name.npos) continue;
    STASIS_TRY(ReplaceFile(variables_ + "/" + std::string(name),
                           std::string(text.substr(equals + 1)) + "\n"));
  }
  return variables_;
}

Result<UniqueFd> StepFiles::OpenLog() const {
  return stasis::Open(log_path_, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW);
}

void StepFiles::Remove(bool keep_log) {
  (void)RemoveFile(script_);
  (void)RemoveTree(variables_);
  if (!keep_log) (void)RemoveFile(log_path_);
  RemoveTaskFiles(script_);
}

}  // namespace stasis::slurm
