#include "jobs/shim_client.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"
#include "ipc/pidns_init.h"
#include "ipc/socket.h"
#include "process/namespace.h"

namespace stasis::jobs {
namespace {

using shim::Kind;
using shim::Message;
using shim::Step;

// The shim has CRIU's descriptors at this and the following numbers.
constexpr int kFirstPassedFd = 100;

struct ShimArguments {
  std::string mode;
  std::string job_folder;
  StdioSpec stdio;
  std::vector<std::string> argv;
  std::optional<std::vector<std::string>> env;
  std::map<int, int> fds;
  std::map<std::string, std::string> program_env;
  std::optional<pid_t> new_pidns = {};  // pid of CRIU in the new namespace
  bool network_right = false;
};

// Returns this process's environment without the environment variables in `names`.
std::vector<std::string> EnvironmentWithout(const std::map<std::string, std::string>& names) {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text = *entry;
    if (!names.contains(text.substr(0, text.find('=')))) env.push_back(std::move(text));
  }
  return env;
}

Result<UniqueFd> StartShim(const ShimArguments& arguments) {
  STASIS_ASSIGN(std::string program, LibexecProgram("stasis-shim"));
  STASIS_ASSIGN(ipc::SocketPair control, ipc::MakeSocketPair());
  STASIS_ASSIGN(UniqueFd null, Open("/dev/null", O_RDWR));

  SpawnOptions spawn;
  const StdioSpec& stdio = arguments.stdio;
  spawn.argv = {program, arguments.mode, "--job-dir", arguments.job_folder, "--log", stdio.log};
  spawn.env = arguments.env;
  if (!arguments.program_env.empty()) spawn.env = EnvironmentWithout(arguments.program_env);
  spawn.fds = {{STDERR_FILENO, null.get()}, {shim::kControlFd, control.theirs.get()}};
  auto add = [&](const char* option, const std::string& value) {
    spawn.argv.insert(spawn.argv.end(), {option, value});
  };
  auto pass = [&](const char* option, int number, int fd) {
    if (fd < 0) return;
    add(option, std::to_string(number));
    spawn.fds[number] = fd;
  };
  if (stdio.keep_log_bytes != 0) add("--keep-log", std::to_string(stdio.keep_log_bytes));
  if (stdio.terminal) {
    add("--terminal",
        std::to_string(stdio.terminal->rows) + "x" + std::to_string(stdio.terminal->columns));
    pass("--client", shim::kClientFd, stdio.client_fd);
  }
  pass("--input", shim::kInputFd, stdio.input_fd);
  int next = kFirstPassedFd;
  for (auto [there, here] : arguments.fds) {
    add("--fd", std::to_string(there) + "=" + std::to_string(next));
    spawn.fds[next++] = here;
  }
  for (const auto& [name, value] : arguments.program_env) {
    add("--env", name + "=" + value);
  }
  const ipc::PidnsInit* init = arguments.new_pidns ? ipc::PidnsInit::Get() : nullptr;
  UniqueFd proc;
  if (init != nullptr) {
    STASIS_ASSIGN(proc, Open("/proc", O_PATH | O_DIRECTORY));
    pass("--proc", shim::kProcFd, proc.get());
  } else if (arguments.new_pidns) {
    add("--new-pidns", std::to_string(*arguments.new_pidns));
  }
  spawn.argv.push_back("--");
  spawn.argv.insert(spawn.argv.end(), arguments.argv.begin(), arguments.argv.end());
  spawn.new_session = true;
  if (arguments.mode == "restore") spawn.rights = SpawnOptions::Rights::kRestore;
  spawn.network_right = arguments.network_right;
  if (init != nullptr) {
    // The starter forks the shim, which forks CRIU.
    STASIS_TRY(init->Spawn(spawn, *arguments.new_pidns - 2));
    return std::move(control.ours);
  }
  STASIS_ASSIGN(Subprocess starter, Subprocess::Spawn(spawn));
  // The starter forks the shim and exits at once.
  STASIS_TRY(starter.Wait());
  return std::move(control.ours);
}

tl::unexpected<Error> ShimEnded() {
  return Fail(Code::kUnavailable, "the shim ended without an answer");
}

Result<Message> Receive(int control, const Deadline& deadline) {
  if (!ipc::AwaitReadable(control, deadline)) {
    return Fail(Code::kDeadlineExceeded, "the shim did not answer in time");
  }
  Message message;
  auto packet = ipc::ReceivePacket(control, &message, sizeof message);
  if (!packet || packet->size == 0) return ShimEnded();
  if (packet->size != sizeof message || message.version != shim::kProtocolVersion) {
    return Fail(Code::kInternal, "the shim belongs to another version of Stasis",
                "the installation mixes two versions: unpack or build it again");
  }
  return message;
}

tl::unexpected<Error> ExecError(const Message& message, const std::string& program) {
  Error error = ErrnoError(message.value, "start " + program);
  if (message.value == ENOENT && program.find('/') != std::string::npos && PathExists(program)) {
    error.WithHint("it exists, but the interpreter or loader that it names does not");
  } else if (message.value == ENOENT && program.find('/') == std::string::npos) {
    error.WithHint("no program of that name is on the PATH");
  }
  return Fail(std::move(error));
}

// Explains why a job's own log was rejected (OutputLog::OpenJobs).
const char* WhyNoOwnLog(int error) {
  switch (error) {
    case ELOOP:
      return "a symbolic link, which is not followed";
    case EPERM:
      return "another user's file";
    case EMLINK:
      return "a file with several hard links, in a folder that other users can write to";
    case ENOTSUP:
      return "not a regular file";
    default:
      return nullptr;
  }
}

// Converts kFailed to an error. Only a failed exec gives kNotFound; other failures are internal.
tl::unexpected<Error> FailedStep(const Message& message, const ShimArguments& arguments) {
  switch (message.step) {
    case Step::kExec:
      return ExecError(message, arguments.argv.front());
    case Step::kLog: {
      Error error = ErrnoError(message.value, "open the log " + arguments.stdio.log);
      if (error.code == Code::kNotFound) {
        error.code = Code::kInvalidArgument;
        error.domain = Domain::kUsage;
      }
      if (arguments.stdio.log == arguments.job_folder + shim::kOwnLog) {
        if (const char* what = WhyNoOwnLog(message.value)) {
          return Fail(
              Code::kPermissionDenied, "the job's own log " + arguments.stdio.log + " is " + what,
              std::string(message.value == EMLINK ? "it may be one of your other files"
                                                  : "Stasis did not create it") +
                  ": remove it, and Stasis creates a new one, or choose another with --log");
        }
      }
      if (message.value == ELOOP || message.value == EMLINK) {
        return Fail(Code::kPermissionDenied,
                    arguments.stdio.log + " cannot be a log: " +
                        (message.value == ELOOP ? "its path has a symbolic link of another user"
                                                : "it has several hard links"),
                    "name a file with one link, by a path without symbolic links");
      }
      if (message.value == EBADF) {
        return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                    arguments.stdio.log +
                        " cannot be a log: it names a descriptor, which is another file in each "
                        "process",
                    "name a file; `stasis logs -f` or --attach shows the program's output");
      }
      if (message.value == ENOTSUP) {
        return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                    arguments.stdio.log + " cannot be a log: it is a pipe, a socket or a terminal",
                    "name a file; `stasis logs -f` or --attach shows the program's output");
      }
      return Fail(std::move(error));
    }
    default: {
      static constexpr const char* kWhat[] = {"start",
                                              "read the shim's arguments",
                                              "lock the job's folder",
                                              "",
                                              "start a process",
                                              "write the job's record",
                                              "",
                                              "pass the restored tree to the shim",
                                              "create a pid namespace with its own /proc",
                                              "create a terminal for the program"};
      auto step = static_cast<size_t>(message.step);
      Error error = ErrnoError(message.value, step < std::size(kWhat) ? kWhat[step] : "start");
      if (error.code == Code::kNotFound) error.code = Code::kInternal;
      return Fail(std::move(error));
    }
  }
}

process::ProcessId IdOf(const Message& message) { return {{message.pid}, message.start_time}; }

}  // namespace

Result<StartedJob> StartShimForRun(const RunSpec& spec, const Deadline& deadline) {
  ShimArguments arguments{"run", spec.job_folder, spec.stdio, spec.argv, {}, {}, spec.env};
  STASIS_ASSIGN(UniqueFd control, StartShim(arguments));
  StartedJob started;
  for (;;) {
    STASIS_ASSIGN(Message message, Receive(control.get(), deadline));
    if (message.kind == Kind::kFailed) return FailedStep(message, arguments);
    if (message.kind == Kind::kShim) started.shim = IdOf(message);
    if (message.kind == Kind::kRoot) {
      started.root = IdOf(message);
      return started;
    }
  }
}

Result<RestoreShim> RestoreShim::Start(const RestoreSpec& spec, const Deadline& deadline) {
  ShimArguments arguments{"restore",     spec.job_folder, spec.stdio, spec.criu_argv,
                          spec.criu_env, spec.criu_fds,   {}};
  if (spec.new_pidns) arguments.new_pidns = spec.criu_pid;
  arguments.network_right = spec.network_right;
  RestoreShim shim;
  STASIS_ASSIGN(shim.control_, StartShim(arguments));
  for (;;) {
    auto received = Receive(shim.control_.get(), deadline);
    if (!received) {
      // The shim may still wait for the job's lock, for example behind another restore. Kill it, so
      // that it does not restore the job later.
      if (auto pidfd = process::OpenPidfd(shim.shim_)) {
        ::syscall(SYS_pidfd_send_signal, pidfd->get(), SIGKILL, nullptr, 0);
      }
      return Fail(std::move(received).error());
    }
    const Message& message = *received;
    if (message.kind == Kind::kFailed) return FailedStep(message, arguments);
    if (message.kind == Kind::kShim) shim.shim_ = IdOf(message);
    if (message.kind == Kind::kCriu) {
      if (!spec.new_pidns) shim.criu_ = {message.pid};
      return shim;
    }
  }
}

Status RestoreShim::Say(const Message& message) {
  if (!ipc::SendPacket(control_.get(), &message, sizeof message)) return ShimEnded();
  return {};
}

Result<Message> RestoreShim::Await(Kind kind, const Deadline& deadline) {
  for (;;) {
    STASIS_ASSIGN(Message message, Receive(control_.get(), deadline));
    if (message.kind == Kind::kCriuEnded) criu_ended_ = message.value;
    if (message.kind == Kind::kRootEnded) root_ended_ = message.value;
    if (message.kind == kind || message.kind == Kind::kFailed) return message;
  }
}

Status RestoreShim::AwaitAck(Kind of, const Deadline& deadline) {
  STASIS_ASSIGN(Message message, Await(Kind::kAck, deadline));
  if (message.kind == Kind::kFailed) return FailedStep(message, {});
  if (message.value != static_cast<int32_t>(of)) {
    return Fail(Code::kInternal, "the shim acknowledged a different message");
  }
  return {};
}

Status RestoreShim::SetRoot(const process::ProcessId& root, const Deadline& deadline) {
  STASIS_ASSIGN(pid_t inner, process::ReadInnerPid(root.pid));
  STASIS_TRY(Say({.kind = Kind::kRoot,
                  .pid = root.pid.value,
                  .inner_pid = inner,
                  .start_time = root.start_time}));
  return AwaitAck(Kind::kRoot, deadline);
}

Result<int> RestoreShim::AwaitCriuEnd(const Deadline& deadline) {
  if (criu_ended_) return *criu_ended_;
  STASIS_ASSIGN(Message message, Await(Kind::kCriuEnded, deadline));
  if (message.kind == Kind::kFailed) return ShimEnded();
  return message.value;
}

std::optional<int> RestoreShim::AwaitRootEnd(const Deadline& deadline) {
  if (!root_ended_) (void)Await(Kind::kRootEnded, deadline);
  return root_ended_;
}

Status RestoreShim::Commit(const Deadline& deadline) {
  STASIS_TRY(Say({.kind = Kind::kCommit}));
  STASIS_TRY(AwaitAck(Kind::kCommit, deadline));
  control_.Reset();
  return {};
}

Status RestoreShim::Abort(const Deadline& deadline) {
  STASIS_TRY(Say({.kind = Kind::kAbort}));
  STASIS_TRY(AwaitAck(Kind::kAbort, deadline));
  control_.Reset();
  return {};
}

}  // namespace stasis::jobs
