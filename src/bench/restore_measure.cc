#include "bench/restore_measure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "base/deadline.h"
#include "base/file.h"
#include "base/id128.h"
#include "base/install_layout.h"
#include "base/subprocess.h"

namespace stasis::bench {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

constexpr std::chrono::milliseconds kPollInterval{200};
constexpr std::chrono::seconds kCommand{600};
constexpr std::chrono::seconds kFirstAnswer{120};
constexpr std::chrono::seconds kRollBack{60};
constexpr char kImage[] = "image";
constexpr char kRoundLine[] = "\nROUND ";

// A command of Stasis, running or ended.
class Command {
 public:
  static Result<Command> Start(const std::string& program, const Words& words, const Words& env) {
    Command command;
    command.text_ = fmt::format("stasis {}", fmt::join(words, " "));
    command.out_ = UniqueFd(::memfd_create("out", MFD_CLOEXEC));
    command.err_ = UniqueFd(::memfd_create("err", MFD_CLOEXEC));
    if (!command.out_ || !command.err_) return FailErrno(errno, "memfd_create");
    SpawnOptions spawn;
    spawn.argv = {program, "--json", "--no-daemon"};
    spawn.argv.insert(spawn.argv.end(), words.begin(), words.end());
    spawn.env = env;
    spawn.fds = {{0, -1}, {1, command.out_.get()}, {2, command.err_.get()}};
    spawn.fds.erase(0);
    spawn.new_session = true;  // Ctrl-C must reach only this process
    STASIS_ASSIGN(command.child_, Subprocess::Spawn(spawn));
    return command;
  }

  int pidfd() const { return child_.pidfd(); }
  // Waits for the end; if `cancelled`, interrupts the command, which then undoes its operation.
  // Returns the exit code.
  Result<int> Wait(const std::function<bool()>& cancelled) {
    const Deadline deadline = Deadline::In(kCommand);
    while (true) {
      auto status = child_.Wait(Deadline::In(kPollInterval));
      if (status) return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
      if (status.error().code != Code::kDeadlineExceeded) return Fail(std::move(status).error());
      const bool is_cancelled = cancelled && cancelled();
      if (!is_cancelled && !deadline.passed()) continue;
      child_.Kill(SIGINT);
      if (!child_.Wait(Deadline::In(kRollBack))) {
        child_.Kill(SIGKILL);
        (void)child_.Wait();
      }
      if (is_cancelled) return Fail(Code::kCancelled, "cancelled");
      return Fail(Code::kDeadlineExceeded, text_ + " did not end in time");
    }
  }
  Result<json> Output() const {
    STASIS_ASSIGN(const std::string text, ReadFile(fmt::format("/proc/self/fd/{}", out_.get())));
    json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (document.is_discarded()) return Fail(Code::kInternal, text_ + " printed no JSON");
    return document;
  }
  tl::unexpected<Error> Failed(int code) const {
    auto text = ReadFile(fmt::format("/proc/self/fd/{}", err_.get()));
    return Fail(Code::kUnavailable, fmt::format("{}: exit code {}: {}", text_, code,
                                                text.value_or("").substr(0, 2000)));
  }

 private:
  Command() = default;
  std::string text_;
  UniqueFd out_, err_;
  Subprocess child_;
};

// Waits until the program has printed a round to its log beyond `offset`, or ends.
class LogWatch {
 public:
  static Result<LogWatch> Open(const std::string& path) {
    LogWatch watch;
    watch.path_ = path;
    watch.inotify_ = UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (!watch.inotify_) return FailErrno(errno, "watch " + path);
    if (::inotify_add_watch(watch.inotify_.get(), path.c_str(), IN_MODIFY) < 0) {
      return FailErrno(errno, "watch " + path);
    }
    STASIS_ASSIGN(const std::string text, ReadFile(path));
    watch.offset_ = text.empty() ? 0 : text.size() - 1;  // keeps the last line's end
    return watch;
  }
  // `command` is a command that brings the program back. If it fails, no line will come.
  Status Await(const Command& command, const std::function<bool()>& cancelled) {
    const Deadline deadline = Deadline::In(kFirstAnswer);
    bool ended = false;
    while (true) {
      STASIS_ASSIGN(const std::string text, ReadFile(path_));
      if (text.size() > offset_ &&
          ("\n" + text.substr(offset_)).find(kRoundLine) != std::string::npos) {
        return {};
      }
      if (cancelled && cancelled()) return Fail(Code::kCancelled, "cancelled");
      if (deadline.passed() || failed_) {
        return Fail(Code::kDeadlineExceeded, "the restored program did not answer");
      }
      pollfd events[2] = {{inotify_.get(), POLLIN, 0}, {ended ? -1 : command.pidfd(), POLLIN, 0}};
      (void)::poll(events, 2, static_cast<int>(kPollInterval.count()));
      char buffer[4096];
      while (::read(inotify_.get(), buffer, sizeof buffer) > 0) {
      }
      if (!ended && (events[1].revents & POLLIN) != 0) {
        ended = true;
        siginfo_t info{};
        failed_ = ::waitid(P_PIDFD, static_cast<id_t>(command.pidfd()), &info,
                           WEXITED | WNOWAIT | WNOHANG) == 0 &&
                  info.si_pid != 0 && (info.si_code != CLD_EXITED || info.si_status != 0);
      }
    }
  }

 private:
  LogWatch() = default;
  std::string path_;
  UniqueFd inotify_;
  size_t offset_ = 0;
  bool failed_ = false;
};

class RestoreBench {
 public:
  RestoreBench(const RestoreOptions& options, std::string root)
      : options_(options), root_(std::move(root)) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!std::string_view(*entry).starts_with("CUDA_VISIBLE_DEVICES=")) env_.emplace_back(*entry);
    }
  }

  Result<RestoreMeasurements> Run() {
    Stopwatch watch;
    RestoreMeasurements found;
    found.size_bytes = options_.size_bytes;
    for (const bool agent : {true, false}) {
      const int rounds = agent ? options_.rounds : options_.driver_rounds;
      if (rounds == 0) continue;
      for (const char* source : {"page cache", "tmpfs", "disk"}) {
        STASIS_ASSIGN(RestoreSeries series,
                      Annotate(Measure(source, agent, rounds),
                               fmt::format("{}, from the {}",
                                           agent ? "under the agent" : "by the driver", source)));
        found.series.push_back(std::move(series));
      }
    }
    found.total_s = watch.Seconds();
    return found;
  }

 private:
  Result<Command> Start(const Words& words, const std::string& gpu = "") const {
    Words env = env_;
    if (!gpu.empty()) env.push_back("CUDA_VISIBLE_DEVICES=" + gpu);
    return Command::Start(root_ + "/bin/stasis", words, env);
  }
  Result<json> Stasis(const Words& words, const std::string& gpu = "") const {
    STASIS_ASSIGN(Command command, Start(words, gpu));
    STASIS_ASSIGN(const int code, command.Wait(options_.cancelled));
    if (code != 0) return command.Failed(code);
    return command.Output();
  }
  void Progress(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  Result<RestoreSeries> Measure(const std::string& source, bool agent, int rounds) {
    RestoreSeries series;
    series.source = source;
    series.agent = agent;
    const std::string what =
        fmt::format("{}, {}", agent ? "under the agent" : "by the driver", source);
    STASIS_ASSIGN(const Id128 id, Id128::Random());
    job_ = "bench-" + id.Hex();
    const std::string folder = (source == "tmpfs" ? options_.tmpfs : options_.disk) + "/" + job_;
    if (::mkdir(folder.c_str(), 0700) != 0) return FailErrno(errno, "create " + folder);
    auto all = [&]() -> Status {
      Progress(what + ": start");
      STASIS_TRY(StartProgram(folder, agent));
      Progress(what + ": dump");
      Stopwatch watch;
      Words words = {"dump", job_, "-d", folder, "--name", kImage};
      if (options_.ignore_memory) words.emplace_back("--ignore-memory");
      STASIS_ASSIGN(json dumped, Stasis(words));
      series.dump_s = watch.Seconds();
      series.dump = std::make_shared<const json>(std::move(dumped));
      for (int i = 1; i <= rounds; ++i) {
        Progress(fmt::format("{}: restore {} of {}", what, i, rounds));
        STASIS_ASSIGN(RestoreRound round, Round(folder, source == "disk"));
        series.rounds.push_back(std::move(round));
      }
      return {};
    };
    Status done = all();
    if (!done) EndProgram();
    (void)Command::Start(root_ + "/bin/stasis", {"delete", job_}, env_)
        .and_then([](Command command) { return command.Wait({}); });
    Status removed = RemoveTree(folder);
    STASIS_TRY(std::move(done));
    STASIS_TRY(std::move(removed));
    return series;
  }

  Status StartProgram(const std::string& folder, bool agent) {
    const std::string log = folder + "/log";
    STASIS_ASSIGN(const UniqueFd made, stasis::Open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    STASIS_ASSIGN(LogWatch watch, LogWatch::Open(log));
    Words words = {"run", "--job", job_, "--log", log};
    if (!agent) words.emplace_back("--no-agent");
    words.insert(words.end(), {"--", root_ + "/workloads/vector", "--memory",
                               std::to_string(options_.size_bytes), "--interval", "1"});
    STASIS_ASSIGN(Command command, Start(words, options_.gpu.uuid.value));
    STASIS_ASSIGN(const int code, command.Wait(options_.cancelled));
    if (code != 0) return command.Failed(code);
    return Annotate(watch.Await(command, options_.cancelled), "start the measured program");
  }

  // Reads the files of the image into the page cache, or drops them from it.
  static Status Prepare(const std::string& image, bool drop) {
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(image, error)) {
      if (!entry.is_regular_file()) continue;
      STASIS_ASSIGN(const UniqueFd fd, stasis::Open(entry.path(), O_RDONLY | O_CLOEXEC));
      if (drop) {
        if (::fdatasync(fd.get()) != 0) return FailErrno(errno, "sync " + entry.path().string());
        (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
        continue;
      }
      std::vector<char> buffer(16u << 20);
      while (::read(fd.get(), buffer.data(), buffer.size()) > 0) {
      }
    }
    if (error) return FailErrno(error.value(), "list " + image);
    return {};
  }

  Result<RestoreRound> Round(const std::string& folder, bool drop) {
    const std::string image = folder + "/" + kImage, log = folder + "/log";
    STASIS_TRY(Prepare(image, drop));
    STASIS_ASSIGN(LogWatch log_watch, LogWatch::Open(log));
    Words words = {"restore", image, "--job", job_, "--log", log};
    if (options_.ignore_memory) words.emplace_back("--ignore-memory");
    RestoreRound round;
    Stopwatch watch;
    STASIS_ASSIGN(Command command, Start(words));
    Status answered = log_watch.Await(command, options_.cancelled);
    round.answer_s = watch.Seconds();
    STASIS_ASSIGN(const int code, command.Wait(options_.cancelled));
    round.command_s = watch.Seconds();
    if (code != 0) return command.Failed(code);
    STASIS_TRY(std::move(answered));
    STASIS_ASSIGN(json account, command.Output());
    round.account = std::make_shared<const json>(std::move(account));
    // The program compares all of its memory before it ends.
    STASIS_TRY(Annotate(Stasis({"kill", job_}).map([](const json&) {}), "end the program"));
    STASIS_ASSIGN(Command wait, Start({"wait", job_}));
    STASIS_ASSIGN(const int ended, wait.Wait(options_.cancelled));
    if (ended == 0) return round;
    return Fail(Code::kDataLoss, fmt::format("the restored program ended with exit code {}: its "
                                             "memory was not restored correctly",
                                             ended));
  }

  // After an error.
  void EndProgram() const {
    for (const Words& words : {Words{"kill", job_, "-s", "KILL"}, Words{"wait", job_}}) {
      auto command = Command::Start(root_ + "/bin/stasis", words, env_);
      if (command) (void)command->Wait({});
    }
  }

  const RestoreOptions& options_;
  const std::string root_;  // of the installation
  Words env_;
  std::string job_;
};

}  // namespace

Result<RestoreMeasurements> MeasureRestore(const RestoreOptions& options) {
  STASIS_ASSIGN(std::string root, InstallRoot());
  const std::string program = root + "/workloads/vector";
  if (!PathExists(program)) {
    return Fail(Code::kNotFound, "the measured program is missing: " + program,
                "the installation is incomplete: unpack or build it again");
  }
  return RestoreBench(options, std::move(root)).Run();
}

}  // namespace stasis::bench
