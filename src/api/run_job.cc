#include "api/run_job.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "api/methods.h"
#include "api/share_survey.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/file.h"
#include "jobs/agent_library.h"
#include "jobs/store.h"

namespace stasis::api {
namespace {

constexpr auto kStartTimeout = std::chrono::seconds(30);
constexpr shim::WindowSize kDefaultSize{24, 80};

// PyTorch's TCPStore, which torchrun and init_process_group use, then works without libuv, and
// hence without io_uring, which CRIU cannot save.
constexpr char kLibuvVariable[] = "USE_LIBUV";

// Refuses magic links such as /proc/PID/cwd, which the worker could open by its capabilities
// although the user may not.
Status ChangeDirectory(const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_MAGICLINKS;
  UniqueFd folder(
      static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how)));
  if (!folder || ::fchdir(folder.get()) != 0) return FailErrno(errno, "enter folder " + path);
  return {};
}

// Sets environment variables of this process, which the program inherits. Only this user can read
// the environment, while all users could read arguments. An empty value removes the variable.
Status SetEnvironment(const v1::RunRequest& request) {
  for (const auto& [name, value] : request.environment()) {
    if (name.empty() || name.find('=') != std::string::npos) {
      return FailUsage("the environment has an invalid name: '" + name.substr(0, 64) + "'");
    }
    const bool set = value.empty() ? ::unsetenv(name.c_str()) == 0
                                   : ::setenv(name.c_str(), value.c_str(), 1) == 0;
    if (!set) return FailErrno(errno, "set " + name.substr(0, 64));
  }
  return {};
}

Result<shim::WindowSize> SizeOf(const v1::WindowSize& asked) {
  if (asked.rows() == 0 && asked.columns() == 0) return kDefaultSize;
  if (asked.rows() > UINT16_MAX || asked.columns() > UINT16_MAX) {
    return FailUsage("the terminal is too large");
  }
  return shim::WindowSize{static_cast<uint16_t>(asked.rows()),
                          static_cast<uint16_t>(asked.columns())};
}

}  // namespace

Result<v1::RunResponse> StartJob(Call& call, const v1::RunRequest& request,
                                 const ConnectStdio& connect) {
  if (request.argv().empty()) return FailUsage("there is no program to run");
  const std::string& program = request.argv(0);
  const jobs::Store store(call.paths.jobs());
  jobs::NewJob wanted;
  wanted.id = request.job();
  wanted.most_jobs = call.settings.most_jobs;
  wanted.argv.assign(request.argv().begin(), request.argv().end());
  wanted.log = request.log();
  if (!request.directory().empty()) {
    STASIS_TRY(Annotate(ChangeDirectory(request.directory()), "cannot run " + program));
  }
  STASIS_ASSIGN(wanted.cwd, ReadLink("/proc/self/cwd"));
  STASIS_ASSIGN(wanted.agent, jobs::AgentToPreload(call.paths, request.no_agent()));
  STASIS_TRY(CheckShare(request.share(), request.no_agent(), wanted.agent));
  wanted.share = request.share();
  STASIS_TRY(SetEnvironment(request));
  // The agent reads environment variables, not the configuration.
  const char* preloaded = std::getenv("LD_PRELOAD");
  std::map<std::string, std::string> env = {
      {"STASIS_HIDE_GPUS", call.settings.hide_gpus ? "1" : ""},
      {"STASIS_FORK_KEEPS_GPU_FILES", call.settings.keep_gpu_files ? "1" : ""},
      // Removes the variable of a job that started this command.
      {kShareVariable, ""},
      {kGrowthVariable, ""},
      {"LD_PRELOAD", jobs::PreloadValue(preloaded == nullptr ? "" : preloaded, wanted.agent)}};

  if (std::getenv(kLibuvVariable) == nullptr) env[kLibuvVariable] = "0";

  STASIS_ASSIGN(jobs::Claim claim, store.Create(wanted));
  const jobs::Job& job = claim.job();
  const bool reserves = call.settings.arena_reserve == "auto" && !wanted.agent.empty();
  if (!job.share.empty()) env[kShareVariable] = ShareSignalFile(claim.folder());
  if (reserves) env[kGrowthVariable] = ShareSignalFile(claim.folder());
  auto start = [&]() -> Result<jobs::StartedJob> {
    jobs::StdioSpec stdio{job.log};
    if (wanted.log.empty()) stdio.keep_log_bytes = call.settings.log_bytes;
    if (request.has_terminal()) {
      STASIS_ASSIGN(stdio.terminal, SizeOf(request.terminal()));
    }
    if (connect) STASIS_TRY(connect(stdio));
    if (!job.share.empty() || reserves) {
      STASIS_TRY(WriteFileDurably(ShareSignalFile(claim.folder()), ""));
    }
    return jobs::StartShimForRun({claim.folder(), stdio, job.argv, env},
                                 Deadline::In(kStartTimeout));
  };
  auto started = start();
  if (!started) {
    (void)claim.Discard();  // if this fails, the next `stasis run` deletes the job
    return Fail(std::move(started).error().WithContext("cannot run " + program));
  }
  v1::RunResponse response;
  response.set_job(job.id);
  response.set_pid(started->root.pid.value);
  response.set_log(Utf8(job.log));
  if (call.started) call.started(job.id);
  return response;
}

Result<v1::RunResponse> Run(Call& call, const v1::RunRequest& request) {
  return StartJob(call, request, {});
}

}  // namespace stasis::api
