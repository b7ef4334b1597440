#include "base/shell_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/erase.h"
#include "base/fd.h"
#include "base/stop_event.h"
#include "base/subprocess.h"

namespace stasis {
namespace {

constexpr size_t kMaxStderrBytes = 4096;
constexpr size_t kMaxReasonBytes = 300;
constexpr std::chrono::seconds kKillTimeout{10};

struct OutputPipe {
  UniqueFd read_end, write_end;
  static Result<OutputPipe> Make() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
    OutputPipe pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
    // Only this process's end is non-blocking, because a command may not expect EAGAIN.
    if (::fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) return FailErrno(errno, "fcntl");
    return pipe;
  }
};

// Appends available bytes to `out` until it has `keep` bytes. Returns false at the end of the
// stream. Sets `more`, and stops reading, if there are more bytes.
Result<bool> Drain(int fd, size_t keep, std::string& out, bool& more) {
  char buffer[kMaxStderrBytes];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) return false;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n < 0) return FailErrno(errno, "read the output of a command");
    const size_t kept = std::min(static_cast<size_t>(n), keep - out.size());
    out.append(buffer, kept);
    ::explicit_bzero(buffer, kept);
    if (kept < static_cast<size_t>(n)) {
      more = true;
      return true;  // the stream may be endless, so do not read on
    }
  }
}

// Returns the last line that is not empty, without control characters.
std::string LastLine(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return (c < ' ' && c != '\n') || c == 127; },
      '?');
  const size_t end = text.find_last_not_of("\n ");
  if (end == text.npos) return {};
  text.resize(end + 1);
  const size_t line = text.rfind('\n');
  return text.substr(line == text.npos ? 0 : line + 1).substr(0, kMaxReasonBytes);
}

class RunningCommand {
 public:
  RunningCommand(const ShellCommand& command, Subprocess child, UniqueFd out, UniqueFd err)
      : command_(command), child_(std::move(child)), out_(std::move(out)), err_(std::move(err)) {
    // The buffer is reserved once, so that no copy of a secret stays in freed memory.
    output_.reserve(command.max_bytes + 1);
  }
  ~RunningCommand() {
    if (!reaped_) Kill();
    Erase(output_);
  }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  // Waits for the end of the command, not of its output, because a process that it leaves behind
  // may hold the pipes.
  Result<std::string> Collect(const Deadline& deadline, const StopEvent& stop) {
    pollfd polled[] = {{child_.pidfd(), POLLIN, 0},
                       {out_.get(), POLLIN, 0},
                       {err_.get(), POLLIN, 0},
                       {stop.fd(), POLLIN, 0}};
    for (;;) {
      const auto ready = TEMP_FAILURE_RETRY(::poll(polled, 4, deadline.PollTimeout()));
      if (ready < 0) return FailErrno(errno, "poll");
      if (polled[3].revents != 0) return Fail(Code::kCancelled, "cancelled");
      // The deadline is checked too, because with endless output poll would never time out.
      if (ready == 0 || deadline.passed()) {
        return Fail(Code::kDeadlineExceeded, command_.setting + " has not ended in time", Hint());
      }
      const bool ended = polled[0].revents != 0;  // everything that it printed can be read now
      STASIS_TRY(Read(polled[1], polled[2]));
      if (ended) return Finish();
    }
  }

 private:
  Status Read(pollfd& out, pollfd& err) {
    bool too_much = false, ignored = false;
    STASIS_ASSIGN(const bool open, Drain(out_.get(), command_.max_bytes, output_, too_much));
    if (too_much) {
      return Fail(
          Code::kResourceExhausted,
          fmt::format("{} printed more than {} bytes", command_.setting, command_.max_bytes),
          Hint());
    }
    if (!open) out.fd = -1;
    STASIS_ASSIGN(const bool errors, Drain(err_.get(), kMaxStderrBytes, messages_, ignored));
    if (!errors) err.fd = -1;
    return {};
  }

  Result<std::string> Finish() {
    STASIS_ASSIGN(const int status, child_.Wait(Deadline::In(kKillTimeout)));
    reaped_ = true;
    if (status == 0) return std::move(output_);
    const std::string reason = LastLine(messages_);
    return Fail(Code::kUnavailable,
                fmt::format("{} {}{}{}", command_.setting, DescribeWaitStatus(status),
                            reason.empty() ? "" : ": ", reason),
                Hint());
  }

  std::string Hint() const { return "run the command of " + command_.setting + " by hand"; }

  void Kill() {
    ::kill(-child_.pid(), SIGKILL);
    (void)child_.Wait(Deadline::In(kKillTimeout));
  }

  const ShellCommand& command_;
  Subprocess child_;
  UniqueFd out_, err_;
  std::string output_, messages_;
  bool reaped_ = false;
};

}  // namespace

Result<std::string> RunShellCommand(const ShellCommand& command, const Deadline& deadline,
                                    const std::stop_token& stop) {
  STASIS_ASSIGN(const auto stop_event, StopEvent::Make(stop));
  STASIS_ASSIGN(OutputPipe out, OutputPipe::Make());
  STASIS_ASSIGN(OutputPipe err, OutputPipe::Make());
  SpawnOptions spawn;
  spawn.argv = {"/bin/sh", "-c", command.command};
  spawn.fds = {{1, out.write_end.get()}, {2, err.write_end.get()}};
  spawn.new_session = true;  // its process group is killed at the deadline
  STASIS_ASSIGN(Subprocess child, Annotate(Subprocess::Spawn(spawn), "run " + command.setting));
  out.write_end.Reset();
  err.write_end.Reset();
  RunningCommand running(command, std::move(child), std::move(out.read_end),
                         std::move(err.read_end));
  return running.Collect(deadline, *stop_event);
}

}  // namespace stasis
