#include "containers/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string_view>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"

extern char** environ;

namespace stasis::containers {
namespace {

constexpr size_t kMaxReasonBytes = 600;
constexpr std::chrono::seconds kExitTimeout{5};
constexpr const char* kUsualFolders[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
                                         "/usr/bin",        "/sbin",          "/bin"};

std::vector<std::string> FoldersOf(const std::string& path) {
  std::vector<std::string> folders;
  std::istringstream parts(path);
  for (std::string folder; std::getline(parts, folder, ':');) {
    if (folder.starts_with('/')) folders.push_back(folder);
  }
  return folders;
}

// Returns this process's PATH followed by the usual folders, because a daemon or a cron job may
// have a short PATH.
std::string SearchPath() {
  const char* own = ::secure_getenv("PATH");
  std::vector<std::string> folders = FoldersOf(own == nullptr ? "" : own);
  for (const char* usual : kUsualFolders) {
    if (std::find(folders.begin(), folders.end(), usual) == folders.end()) {
      folders.emplace_back(usual);
    }
  }
  return fmt::format("{}", fmt::join(folders, ":"));
}

std::vector<std::string> Environment() {
  static constexpr std::string_view kKept[] = {"HOME",
                                               "USER",
                                               "TMPDIR",
                                               "XDG_RUNTIME_DIR",
                                               "XDG_CONFIG_HOME",
                                               "XDG_DATA_HOME",
                                               "DBUS_SESSION_BUS_ADDRESS"};
  static constexpr std::string_view kPrefixes[] = {"CONTAINERS_", "CONTAINERD_"};
  std::vector<std::string> kept = {"PATH=" + SearchPath(), "LC_ALL=C"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    bool keep = std::find(std::begin(kKept), std::end(kKept), name) != std::end(kKept);
    for (std::string_view prefix : kPrefixes) keep |= name.starts_with(prefix);
    if (keep) kept.emplace_back(text);
  }
  return kept;
}

// Appends all available data to `out`. Returns false at the end of the stream.
Result<bool> Drain(int fd, std::string& out) {
  char buffer[64 << 10];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) return false;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n < 0) return FailErrno(errno, "read its output");
    if (out.size() + static_cast<size_t>(n) > kMaxOutputBytes) {
      return Fail(Code::kResourceExhausted,
                  fmt::format("it printed more than {} MiB", kMaxOutputBytes >> 20));
    }
    out.append(buffer, static_cast<size_t>(n));
  }
}

struct Pipe {
  UniqueFd read_end, write_end;
  static Result<Pipe> Make() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
    return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
  }
  // Only this process's end is non-blocking, because a command may not expect EAGAIN.
  static Result<Pipe> MakeForReader() {
    STASIS_ASSIGN(Pipe pipe, Make());
    if (::fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK) != 0) return FailErrno(errno, "fcntl");
    return pipe;
  }
};

// Starts a process that appends everything from a pipe to a file, and returns the pipe's other end.
// The process exits when all copies of that end are closed. This process does not wait for it; init
// reaps it.
Result<UniqueFd> StartOutput(const std::string& path) {
  STASIS_ASSIGN(const std::string program, LibexecProgram("stasis-container-output"));
  STASIS_ASSIGN(const UniqueFd file, Open(path, O_WRONLY | O_CREAT | O_APPEND, 0600));
  STASIS_ASSIGN(Pipe pipe, Pipe::Make());
  SpawnOptions spawn;
  spawn.argv = {program};
  spawn.env = std::vector<std::string>();
  spawn.fds = {{0, pipe.read_end.get()}, {1, file.get()}, {2, file.get()}};
  spawn.new_session = true;
  STASIS_TRY(Subprocess::Spawn(spawn));
  return std::move(pipe.write_end);
}

// Returns an empty input: the read end of a pipe that has no writer.
Result<UniqueFd> EmptyInput() {
  STASIS_ASSIGN(Pipe pipe, Pipe::Make());
  return std::move(pipe.read_end);
}

// Kills the command and its process group. Programs that it has started in their own sessions, such
// as a container, continue to run.
void EndGroup(Subprocess& child) {
  ::kill(-child.pid(), SIGTERM);
  if (child.Wait(Deadline::In(kExitTimeout))) return;
  ::kill(-child.pid(), SIGKILL);
  (void)child.Wait(Deadline::In(kExitTimeout));
}

class SystemRunner final : public CommandRunner {
 public:
  std::string Find(const std::string& program, const std::string& path) override {
    for (const std::string& folder : FoldersOf(path.empty() ? SearchPath() : path)) {
      std::string candidate = folder + "/" + program;
      if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
    return {};
  }

  Result<CommandOutput> Run(const std::vector<std::string>& argv,
                            const CommandOptions& options) override {
    const std::string program = argv[0].starts_with('/') ? argv[0] : Find(argv[0], "");
    if (program.empty()) {
      return Fail(Code::kNotFound, "there is no program " + argv[0] + " on PATH");
    }
    auto output = RunProgram(program, argv, options);
    if (!output) output.error().WithContext(fmt::format("`{}`", fmt::join(argv, " ")));
    return output;
  }

 private:
  static Result<CommandOutput> RunProgram(const std::string& program,
                                          const std::vector<std::string>& argv,
                                          const CommandOptions& options) {
    STASIS_ASSIGN(Pipe out, Pipe::MakeForReader());
    STASIS_ASSIGN(Pipe err, Pipe::MakeForReader());
    SpawnOptions spawn;
    spawn.argv = argv;
    spawn.argv[0] = program;
    std::vector<std::string> environment = Environment();
    environment.insert(environment.end(), options.variables.begin(), options.variables.end());
    spawn.env = std::move(environment);
    spawn.fds = {{1, out.write_end.get()}, {2, err.write_end.get()}};
    UniqueFd input, output_pipe;
    if (!options.output_file.empty()) {
      STASIS_ASSIGN(output_pipe, StartOutput(options.output_file));
      STASIS_ASSIGN(input, EmptyInput());
      spawn.fds = {{0, input.get()}, {1, output_pipe.get()}, {2, output_pipe.get()}};
    }
    // Ctrl-C in the user's terminal must not interrupt a checkpoint.
    spawn.new_session = true;
    STASIS_ASSIGN(Subprocess child, Subprocess::Spawn(spawn));
    out.write_end.Reset();
    err.write_end.Reset();
    output_pipe.Reset();

    CommandOutput output;
    auto status = Collect(child, out.read_end.get(), err.read_end.get(), options.deadline, output);
    if (!status) {
      EndGroup(child);
      return Fail(std::move(status).error());
    }
    output.status = *status;
    return output;
  }

  // Waits for the end of the command, not of its output, because programs that it leaves running
  // may hold its pipes.
  static Result<int> Collect(Subprocess& child, int out, int err, const Deadline& deadline,
                             CommandOutput& output) {
    pollfd polled[] = {{child.pidfd(), POLLIN, 0}, {out, POLLIN, 0}, {err, POLLIN, 0}};
    for (;;) {
      const auto ready = TEMP_FAILURE_RETRY(::poll(polled, 3, deadline.PollTimeout()));
      if (ready < 0) return FailErrno(errno, "poll");
      if (ready == 0) return Fail(Code::kDeadlineExceeded, "it did not end in time");
      for (int i = 1; i <= 2; ++i) {
        if (polled[i].fd < 0) continue;
        STASIS_ASSIGN(const bool more, Drain(polled[i].fd, i == 1 ? output.out : output.err));
        if (!more) polled[i].fd = -1;
      }
      if (polled[0].revents != 0) return child.Wait(Deadline::In(kExitTimeout));
    }
  }
};

}  // namespace

std::string CommandOutput::Reason() const {
  // Takes the last line that is not empty, because runtimes print warnings before it.
  std::istringstream lines(err);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  if (last.empty()) return "it " + DescribeWaitStatus(status);
  // runc writes log lines: time="…" level=error msg="container does not exist".
  constexpr std::string_view kMessage = "level=error msg=\"";
  if (const size_t at = last.find(kMessage); at != last.npos) {
    last.erase(0, at + kMessage.size());
    last.resize(last.rfind('"') == last.npos ? last.size() : last.rfind('"'));
  }
  return last.substr(0, kMaxReasonBytes);
}

std::unique_ptr<CommandRunner> MakeCommandRunner() { return std::make_unique<SystemRunner>(); }

Result<std::string> RunOk(CommandRunner& runner, const std::vector<std::string>& argv,
                          const Deadline& deadline) {
  STASIS_ASSIGN(CommandOutput output, runner.Run(argv, {deadline, {}}));
  if (output.ok()) return std::move(output.out);
  return Fail(Code::kUnavailable, Domain::kProcess, output.status,
              fmt::format("`{}`: {}", fmt::join(argv, " "), output.Reason()));
}

}  // namespace stasis::containers
