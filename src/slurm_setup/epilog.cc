#include "slurm_setup/epilog.h"

#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <sstream>

#include "base/file.h"
#include "base/subprocess.h"

namespace stasis::slurm_setup {
namespace {

// Slurm's own limit for an Epilog is longer.
constexpr std::chrono::seconds kCommandLimit{30};
constexpr std::chrono::seconds kKillLimit{2};
constexpr std::string_view kOfPlugin = "SPANK_";
// A user's variable must not choose a program.
constexpr std::string_view kFolders[] = {
    "STASIS_STATE_DIR=", "STASIS_RUN_DIR=", "STASIS_ARENA_DIR=", "STASIS_IMAGE_DIR=",
    "XDG_STATE_HOME="};

std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  const auto threads = ListDir("/proc/self/task");
  if (!threads) return children;
  for (const std::string& thread : *threads) {
    std::istringstream words(ReadFile("/proc/self/task/" + thread + "/children").value_or(""));
    for (pid_t pid = 0; words >> pid;) children.push_back(pid);
  }
  return children;
}

// Kills and reaps the children of this process, and theirs, until none is left. Returns false if a
// process is still there at the deadline: one in uninterruptible sleep does not end.
bool KillChildren(const Deadline& deadline) {
  for (std::vector<pid_t> pids; !(pids = Children()).empty();) {
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids) {
      const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      pollfd ended{pidfd.get(), POLLIN, 0};
      if (!pidfd || ::poll(&ended, 1, deadline.PollTimeout()) <= 0) return false;
      ::waitpid(pid, nullptr, 0);
    }
  }
  return true;
}

class RealUserCommands : public UserCommands {
 public:
  RealUserCommands(std::string stasis, std::vector<std::string> environment)
      : stasis_(std::move(stasis)), environment_(std::move(environment)) {}

  Status Run(const std::vector<std::string>& args) override {
    SpawnOptions spawn;
    spawn.argv = {stasis_, "-q", "--no-daemon"};
    spawn.argv.insert(spawn.argv.end(), args.begin(), args.end());
    spawn.env = environment_;
    spawn.working_directory = "/";
    // What the command leaves behind, such as a helper that holds the GPU, becomes a child of this
    // process.
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return FailErrno(errno, "subreaper");
    STASIS_ASSIGN(Subprocess child, Subprocess::Spawn(spawn));
    auto status = child.Wait(Deadline::In(kCommandLimit));
    const std::string command = fmt::format("stasis {}", args[0]);
    if (!KillChildren(Deadline::In(kKillLimit))) {
      return Fail(Code::kUnavailable,
                  fmt::format("{}: a process cannot be killed, and may still hold memory or a GPU",
                              command));
    }
    if (!status) {
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("{} did not end in {} s", command, kCommandLimit.count()));
    }
    if (*status == 0) return {};
    return Fail(Code::kFailedPrecondition,
                fmt::format("{} {}", command, DescribeWaitStatus(*status)));
  }

 private:
  std::string stasis_;
  std::vector<std::string> environment_;
};

}  // namespace

Result<EndedJob> ReadEndedJob(char* const* environment) {
  EndedJob job;
  std::string uid;
  for (; *environment != nullptr; ++environment) {
    const std::string_view text = *environment;
    const auto take = [&](std::string_view name, std::string& value) {
      if (text.starts_with(name)) value = text.substr(name.size());
    };
    take("SLURM_JOB_ID=", job.id);
    take("SLURM_JOB_UID=", uid);
    if (!text.starts_with(kOfPlugin)) continue;
    const std::string_view inner = text.substr(kOfPlugin.size());
    for (const std::string_view folder : kFolders) {
      if (inner.starts_with(folder)) job.folders.emplace_back(inner);
    }
  }
  const auto [end, error] = std::from_chars(uid.data(), uid.data() + uid.size(), job.uid);
  if (job.id.empty() || error != std::errc() || end != uid.data() + uid.size()) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "SLURM_JOB_ID and SLURM_JOB_UID do not name a job",
                "Slurm's Epilog runs this command: `stasis slurm config` prints the lines for it");
  }
  return job;
}

Status FreeLeftovers(UserCommands& commands) {
  // Operations first, because undoing them makes arenas unused.
  Status recovered = commands.Run({"recover"});
  if (!recovered && recovered.error().code == Code::kUnavailable) return recovered;
  Status freed = commands.Run({"arena", "free", "--keep-of-running"});
  return recovered ? freed : recovered;
}

Result<std::unique_ptr<UserCommands>> BecomeUser(const EndedJob& job, const std::string& stasis) {
  errno = 0;
  const passwd* user = ::getpwuid(job.uid);
  if (user == nullptr) {
    return Fail(Code::kNotFound, fmt::format("job {}: there is no user {}", job.id, job.uid));
  }
  const std::string home = user->pw_dir;
  if (::geteuid() != job.uid) {
    if (::initgroups(user->pw_name, user->pw_gid) != 0 ||
        ::setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 ||
        ::setresuid(job.uid, job.uid, job.uid) != 0) {
      return FailErrno(errno, fmt::format("job {}: cannot become user {}", job.id, job.uid));
    }
  }
  std::vector<std::string> environment = job.folders;
  environment.push_back("HOME=" + home);
  environment.emplace_back("PATH=/usr/sbin:/usr/bin:/sbin:/bin");
  return std::make_unique<RealUserCommands>(stasis, std::move(environment));
}

}  // namespace stasis::slurm_setup
