#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

#include "api/attach_session.h"
#include "base/file.h"
#include "jobs/watch.h"

namespace stasis::api {
namespace {

constexpr auto kAnswerTimeout = std::chrono::seconds(10);
// Limit for typed bytes that the program has not read; beyond it, keys wait in the terminal.
constexpr size_t kMostTyped = 64u << 10;

shim::WindowSize WindowHere() {
  const v1::WindowSize size = OwnWindowSize();
  return {static_cast<uint16_t>(size.rows()), static_cast<uint16_t>(size.columns())};
}

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
  Stay(AttachSession session, const jobs::Job& job, jobs::TerminalClient client, bool input)
      : session_(std::move(session)),
        id_(job.id),
        root_(job.processes->root),
        client_(std::move(client)),
        input_(input) {}

  Result<int> Run() {
    {
      RawTerminal raw;
      if (input_) raw.Enter();
      STASIS_ASSIGN(leaving_, Loop(raw));
    }
    return leaving_ == Leaving::kByUser ? session_.Detached(id_) : End();
  }

 private:
  enum class Leaving { kNot, kByUser, kByShim };

  Result<Leaving> Loop(RawTerminal& raw);
  Result<Leaving> ShowOutput();
  Leaving ReadKeys();
  Leaving ServeSignals(RawTerminal& raw);
  Result<int> End();
  AttachSession session_;
  const std::string id_;
  const process::ProcessId root_;
  jobs::TerminalClient client_;
  const bool input_;   // false for a session that only watches
  bool holds_ = true;  // no other client has the input
  Leaving leaving_ = Leaving::kNot;
};

Result<Stay::Leaving> Stay::Loop(RawTerminal& raw) {
  for (;;) {
    short wanted = POLLIN;
    if (client_.pending() != 0) wanted |= POLLOUT;
    bool read_keys = input_ && client_.pending() < kMostTyped;
    pollfd waits[] = {{client_.fd(), wanted, 0},
                      {session_.signals.fd(), POLLIN, 0},
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
        session_.TellRaw(fmt::format("{} bytes of output were skipped; `stasis logs {}` has them",
                                     (*packet)->value, id_));
        break;
      case shim::TerminalKind::kHolder: {
        bool holds = (*packet)->value != 0;
        if (holds != holds_) {
          session_.TellRaw(holds ? "this terminal has the input again"
                                 : "another terminal has the input now");
        }
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
  client_.SendInput(session_.keys.Filter({typed, static_cast<size_t>(n)}, &detached));
  return detached ? Leaving::kByUser : Leaving::kNot;
}

Stay::Leaving Stay::ServeSignals(RawTerminal& raw) {
  while (int signal = session_.signals.Read()) {
    switch (signal) {
      case SIGCONT:
        // Another process may have changed the terminal's mode while this process was stopped.
        if (input_) raw.Enter();
        [[fallthrough]];
      case SIGWINCH:
        client_.SendSize(WindowHere());
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

// Called when the shim has disconnected.
Result<int> Stay::End() {
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(session_.store, id_));
  for (;;) {
    STASIS_ASSIGN(jobs::Job job, watch.Look());
    if (auto end = session_.EndOf(job, root_)) return *end;
    if (job.state == jobs::State::kRunning && job.has_shim) return session_.Detached(id_);
    // The shim was killed, and the program gets SIGHUP. Give the program some time to end.
    Status waited = watch.Wait(-1, Deadline::In(kAnswerTimeout));
    if (!waited && waited.error().code == Code::kDeadlineExceeded) {
      return Fail(Code::kUnavailable,
                  fmt::format("the shim of job {} has ended, and so has the job's terminal", id_),
                  "the program is still running: `stasis ps` lists it, `stasis kill` ends it");
    }
    STASIS_TRY(std::move(waited));
  }
}

}  // namespace

v1::WindowSize OwnWindowSize() {
  winsize window{};
  v1::WindowSize size;
  for (int fd : {STDIN_FILENO, STDOUT_FILENO}) {
    if (::ioctl(fd, TIOCGWINSZ, &window) != 0) continue;
    size.set_rows(window.ws_row);
    size.set_columns(window.ws_col);
    break;
  }
  return size;
}

Result<int> StayOnTerminal(AttachSession session, const jobs::Job& job,
                           jobs::TerminalClient client) {
  const bool input = !session.watch && ::isatty(STDIN_FILENO) != 0;
  return Stay(std::move(session), job, std::move(client), input).Run();
}

Result<int> FollowTerminal(AttachSession session, const jobs::Job& job) {
  const bool input = !session.watch && ::isatty(STDIN_FILENO) != 0;
  auto client = Annotate(jobs::TerminalClient::Connect(session.store.Folder(job.id), WindowHere(),
                                                       input, Deadline::In(kAnswerTimeout)),
                         "cannot attach to job " + job.id);
  if (!client) return Fail(std::move(client).error());
  return StayOnTerminal(std::move(session), job, std::move(*client));
}

}  // namespace stasis::api
