#include "cli/attach_terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "jobs/watch.h"

namespace stasis::cli {
namespace {

constexpr auto kAnswerTimeout = std::chrono::seconds(10);
// Limit for typed bytes that the program has not read; beyond it, keys wait in the terminal.
constexpr size_t kMostTyped = 64u << 10;

// Switches the local terminal to raw mode while the object exists.
class RawTerminal {
 public:
  RawTerminal() = default;
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;
  ~RawTerminal() {
    if (raw_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  void Enter() {
    if (!raw_ && ::tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios raw = before_;
    ::cfmakeraw(&raw);
    raw_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
  }

 private:
  bool raw_ = false;
  termios before_{};
};

// One session at a job's terminal.
class Stay {
 public:
  Stay(const Globals& globals, const jobs::Store& store, const jobs::Job& job,
       jobs::TerminalClient client, DetachKeys keys, bool input, CaughtSignals signals)
      : globals_(globals),
        store_(store),
        id_(job.id),
        root_(job.processes->root),
        client_(std::move(client)),
        keys_(std::move(keys)),
        input_(input),
        signals_(std::move(signals)) {}

  Outcome Run() {
    Outcome end = 0;
    {
      RawTerminal raw;
      if (input_) raw.Enter();
      STASIS_ASSIGN(leaving_, Loop(raw));
    }
    return leaving_ == Leaving::kByUser ? Detached(globals_, id_) : End();
  }

 private:
  enum class Leaving { kNot, kByUser, kByShim };

  Result<Leaving> Loop(RawTerminal& raw);
  Result<Leaving> ShowOutput();
  Leaving ReadKeys();
  Leaving ServeSignals(RawTerminal& raw);
  Outcome End();
  void Say(const std::string& what) const {
    if (!globals_.quiet) PrintStderr("\r\n[stasis: " + what + "]\r\n");
  }

  const Globals& globals_;
  const jobs::Store& store_;
  const std::string id_;
  const process::ProcessId root_;
  jobs::TerminalClient client_;
  DetachKeys keys_;
  const bool input_;   // false: only watching
  bool holds_ = true;  // no other client has the input
  CaughtSignals signals_;
  Leaving leaving_ = Leaving::kNot;
};

Result<Stay::Leaving> Stay::Loop(RawTerminal& raw) {
  for (;;) {
    short wanted = POLLIN;
    if (client_.pending() != 0) wanted |= POLLOUT;
    bool read_keys = input_ && client_.pending() < kMostTyped;
    pollfd waits[] = {{client_.fd(), wanted, 0},
                      {signals_.fd(), POLLIN, 0},
                      {read_keys ? STDIN_FILENO : -1, POLLIN, 0}};
    if (::poll(waits, std::size(waits), -1) < 0 && errno != EINTR) return FailErrno(errno, "poll");
    if (waits[1].revents != 0) {
      if (Leaving leaving = ServeSignals(raw); leaving != Leaving::kNot) return leaving;
    }
    if (waits[2].revents != 0) {
      if (Leaving leaving = ReadKeys(); leaving != Leaving::kNot) return leaving;
    }
    if ((waits[0].revents & POLLOUT) != 0) client_.SendInput({});
    STASIS_ASSIGN(Leaving leaving, ShowOutput());
    if (leaving != Leaving::kNot) return leaving;
  }
}

// Handles a few packets at a time, so that continuous output does not delay keys.
Result<Stay::Leaving> Stay::ShowOutput() {
  for (int i = 0; i < 16; ++i) {
    auto packet = client_.Receive();
    if (!packet && packet.error().code == Code::kUnavailable) return Leaving::kByShim;
    if (!packet) return Fail(std::move(packet).error());
    if (!*packet) break;
    switch ((*packet)->kind) {
      case shim::TerminalKind::kOutput:
        if (!WriteAll(STDOUT_FILENO, (*packet)->bytes)) return Leaving::kByUser;
        break;
      case shim::TerminalKind::kSkipped:
        Say(fmt::format("{} bytes were not shown: they came too fast; `stasis logs {}` has them",
                        (*packet)->value, id_));
        break;
      case shim::TerminalKind::kHolder: {
        bool holds = (*packet)->value != 0;
        if (holds != holds_)
          Say(holds ? "the keys are yours again" : "another one has the keys now");
        holds_ = holds;
        break;
      }
      default:
        break;
    }
  }
  return Leaving::kNot;
}

Stay::Leaving Stay::ReadKeys() {
  char typed[4096];
  ssize_t n = ::read(STDIN_FILENO, typed, sizeof typed);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return Leaving::kNot;
  if (n <= 0) return Leaving::kByUser;  // the terminal is gone
  bool detached = false;
  client_.SendInput(keys_.Filter({typed, static_cast<size_t>(n)}, &detached));
  return detached ? Leaving::kByUser : Leaving::kNot;
}

Stay::Leaving Stay::ServeSignals(RawTerminal& raw) {
  while (int signal = signals_.Read()) {
    switch (signal) {
      case SIGCONT:
        // Another process may have changed the terminal while this one was stopped.
        if (input_) raw.Enter();
        [[fallthrough]];
      case SIGWINCH:
        client_.SendSize(OwnWindowSize());
        break;
      case SIGHUP:
        return Leaving::kByUser;
      default:
        if (!input_) return Leaving::kByUser;
        PassOn(root_, signal);
    }
  }
  return Leaving::kNot;
}

// The shim has disconnected.
Outcome Stay::End() {
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store_, id_));
  for (;;) {
    STASIS_ASSIGN(jobs::Job job, watch.Look());
    if (auto end = EndOf(globals_, job, root_)) return *end;
    if (job.state == jobs::State::kRunning && job.has_shim) return Detached(globals_, id_);
    // The shim was killed, and the program gets SIGHUP; give it a moment to end.
    Status waited = watch.Wait(-1, Deadline::In(kAnswerTimeout));
    if (!waited && waited.error().code == Code::kDeadlineExceeded) {
      return Fail(Code::kUnavailable,
                  fmt::format("the shim of job {} has ended, and its terminal with it", id_),
                  "the program still runs: `stasis ps` and `stasis kill` reach it");
    }
    STASIS_TRY(std::move(waited));
  }
}

}  // namespace

shim::WindowSize OwnWindowSize() {
  winsize window{};
  for (int fd : {STDIN_FILENO, STDOUT_FILENO}) {
    if (::ioctl(fd, TIOCGWINSZ, &window) == 0) return {window.ws_row, window.ws_col};
  }
  return {};
}

Outcome StayOnTerminal(const Globals& globals, const jobs::Store& store, const jobs::Job& job,
                       jobs::TerminalClient client, const AttachOptions& options,
                       CaughtSignals signals) {
  STASIS_ASSIGN(DetachKeys keys, DetachKeys::Parse(options.detach_keys));
  const bool input = !options.watch && ::isatty(STDIN_FILENO) != 0;
  return Stay(globals, store, job, std::move(client), std::move(keys), input, std::move(signals))
      .Run();
}

Outcome AttachTerminal(const Globals& globals, const jobs::Store& store, const jobs::Job& job,
                       const AttachOptions& options, CaughtSignals signals) {
  const bool input = !options.watch && ::isatty(STDIN_FILENO) != 0;
  auto client = Annotate(jobs::TerminalClient::Connect(store.Folder(job.id), OwnWindowSize(), input,
                                                       Deadline::In(kAnswerTimeout)),
                         "cannot attach to job " + job.id);
  if (!client) return Fail(std::move(client).error());
  return StayOnTerminal(globals, store, job, std::move(*client), options, std::move(signals));
}

}  // namespace stasis::cli
