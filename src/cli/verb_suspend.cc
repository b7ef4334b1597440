#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct Options {
  std::string target;
  std::string gpu_map;
  std::string spill_dir;
  CommonOptions common;
};

// A folder of the user's own, named so that it is the same one for every later command.
Status CheckSpillFolder(const std::string& path) {
  if (path.empty()) return {};
  if (path.front() != '/') {
    return FailUsage("--spill " + path + " is not an absolute path",
                     "a resume from another directory must find it too");
  }
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return FailErrno(errno, "--spill " + path);
  if (!S_ISDIR(st.st_mode)) return FailUsage("--spill " + path + " is not a folder");
  if (st.st_uid != ::geteuid()) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("--spill {} belongs to user {}, not to us", path, st.st_uid),
        "GPU data is put only where nobody else can exchange it: name a folder of your own");
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) return FailErrno(errno, "--spill " + path);
  return {};
}

}  // namespace

void RegisterSuspend(CLI::App& app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand("suspend", "Give up the GPU of a program, keep the program");
  verb->add_option("TARGET", options->target, "A job or a process id")->required();
  verb->add_option(
      "--spill", options->spill_dir,
      "Put GPU data in a file in this folder, not in host memory (slower; for programs "
      "with the agent)");
  options->common.AddTo(*verb);
  verb->callback([=] {
    select([=](const Globals& globals) {
      return RunOperation(
          globals, options->common, "suspend", "suspend " + options->target,
          [=](auto& session, const auto& run) -> Result<coordinator::OperationResult> {
            STASIS_TRY(CheckSpillFolder(options->spill_dir));
            STASIS_ASSIGN(auto target, ParseTarget(session.services.paths, options->target));
            coordinator::OperationOptions spilling = run;
            spilling.spill_dir = options->spill_dir;
            return coordinator::Suspend(session, target, spilling);
          });
    });
  });
}

void RegisterResume(CLI::App& app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand("resume", "Give a suspended program its GPU back");
  verb->add_option("TARGET", options->target, "A job or a process id")->required();
  verb->add_option("--gpu-map", options->gpu_map,
                   "Move to other GPUs: OLD=NEW,... by UUID, index or name");
  options->common.AddTo(*verb);
  verb->callback([=] {
    select([=](const Globals& globals) {
      return RunOperation(
          globals, options->common, "resume", "resume " + options->target,
          [=](auto& session, const auto& run) -> Result<coordinator::OperationResult> {
            STASIS_ASSIGN(auto target, ParseTarget(session.services.paths, options->target));
            return coordinator::Resume(session, target, {options->gpu_map}, run);
          });
    });
  });
}

}  // namespace stasis::cli
