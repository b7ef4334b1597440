#include "base/bounded.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/fd.h"
#include "base/file.h"
#include "base/task_limits.h"

namespace stasis {
namespace {

// How long to wait for a killed child. Only a child that blocks in the kernel takes longer.
constexpr std::chrono::milliseconds kToBeKilled{1000};

// The child's output: any number of steps (kStep, text, NUL), then either kAnswer and the answer,
// or kError and an ErrorHead, the message, NUL, and the hint.
constexpr char kStep = 's', kAnswer = 'a', kError = 'e';
struct ErrorHead {
  Code code;
  Domain domain;
  bool not_undone;
  int64_t raw;
};

// Removes the steps from `text` and returns the last one.
std::string TakeSteps(std::string& text) {
  std::string last;
  size_t at = 0;
  while (at < text.size() && text[at] == kStep) {
    const size_t end = text.find('\0', at);
    if (end == std::string::npos) break;
    last = text.substr(at + 1, end - at - 1);
    at = end + 1;
  }
  text.erase(0, at);
  return last;
}

[[noreturn]] void Answer(const std::function<Result<std::string>(const NoteStep&)>& question,
                         int to, const BoundedOptions& options, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  // The parent handles Ctrl-C and kills this child.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  std::vector<int> kept = options.keep_fds;
  kept.push_back(to);
  CloseAllBut(std::move(kept));
  const auto answer =
      question([to](const std::string& step) { (void)WriteAll(to, kStep + step + '\0'); });
  (void)WriteAll(to, ToBytes(answer));
  ::_exit(0);
}

// Kills the child and reaps it. Returns false if the child blocks in the kernel. It then stays
// behind, and becomes a zombie of this process when it exits.
bool End(pid_t child) {
  ::kill(child, SIGKILL);
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd end{pidfd.get(), POLLIN, 0};
  const Deadline deadline = Deadline::In(kToBeKilled);
  (void)TEMP_FAILURE_RETRY(::poll(&end, 1, deadline.PollTimeout()));
  return ::waitpid(child, nullptr, WNOHANG) != 0;
}

// While an object exists, this thread receives signals only in Poll, so no signal is lost between
// the check for cancellation and the wait.
class SignalsOnlyInPoll {
 public:
  SignalsOnlyInPoll() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsOnlyInPoll() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsOnlyInPoll(const SignalsOnlyInPoll&) = delete;
  int Poll(pollfd* fd, const Deadline& deadline) const {
    const int left = deadline.PollTimeout();
    const timespec span{left / 1000, left % 1000 * 1'000'000L};
    return ::ppoll(fd, 1, left < 0 ? nullptr : &span, &before_);
  }

 private:
  sigset_t before_;
};

Error NoAnswer(const std::string& step, bool cancelled, pid_t left) {
  Error error{cancelled ? Code::kCancelled : Code::kDeadlineExceeded};
  if (cancelled) {
    error.message = step.empty() ? "cancelled" : "cancelled while trying to " + step;
  } else {
    error.message = step.empty() ? "the helper process did not answer in time"
                                 : "could not " + step + " in time: the system call hangs";
  }
  if (left > 0) {
    error.message += "; the helper process " + std::to_string(left) +
                     " is blocked in the kernel and ends when its system call returns";
  }
  return error;
}

}  // namespace

std::string ToBytes(const Result<std::string>& answer) {
  if (answer) return kAnswer + answer->substr(0, kLongestAnswer);
  const Error& error = answer.error();
  const ErrorHead head{error.code, error.domain, error.not_undone, error.raw};
  return kError + std::string(reinterpret_cast<const char*>(&head), sizeof head) +
         error.ToString() + '\0' + error.hint;
}

Result<std::string> FromBytes(const std::string& text) {
  if (text.starts_with(kAnswer)) return text.substr(1);
  ErrorHead head;
  if (!text.starts_with(kError) || text.size() < 1 + sizeof head) {
    return Fail(Code::kInternal, "the helper process ended without an answer");
  }
  std::memcpy(&head, text.data() + 1, sizeof head);
  const size_t begin = 1 + sizeof head, end = std::min(text.find('\0', begin), text.size());
  Error error{head.code, head.domain, head.raw, text.substr(begin, end - begin)};
  if (end < text.size()) error.hint = text.substr(end + 1);
  error.not_undone = head.not_undone;
  return Fail(std::move(error));
}

// Descriptors 0, 1 and 2 become /dev/null, so that no file opened later gets these numbers.
void CloseAllBut(std::vector<int> kept) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {0, 1, 2}) {
    if (std::find(kept.begin(), kept.end(), fd) == kept.end()) ::dup2(null, fd);
  }
  std::sort(kept.begin(), kept.end());
  int next = 3;
  for (int fd : kept) {
    if (fd < next) continue;
    if (fd > next) ::close_range(unsigned(next), unsigned(fd - 1), 0);
    next = fd + 1;
  }
  ::close_range(unsigned(next), ~0u, 0);
}

Result<std::string> AskBounded(const std::function<Result<std::string>(const NoteStep&)>& question,
                               const Deadline& deadline, const BoundedOptions& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
  UniqueFd ours(ends[0]), its(ends[1]);
  // SAFETY: the child continues to run this program's code after a fork. glibc resets its own locks
  // after a fork, and the question takes no lock that another thread may hold.
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Fail(TaskError(errno, "fork"));
  if (child == 0) Answer(question, its.get(), options, parent);
  its.Reset();
  std::string text;
  bool ended = false, cancelled = false;
  const bool by_steps = options.each_step.count() > 0;
  Deadline until = by_steps ? Deadline::In(options.each_step) : deadline;
  const SignalsOnlyInPoll signals;
  while (!ended && text.size() <= 2 * kLongestAnswer) {
    cancelled = options.cancelled && options.cancelled();
    if (cancelled) break;
    pollfd ready{ours.get(), POLLIN, 0};
    const int n = signals.Poll(&ready, until);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    char part[64u << 10];
    const ssize_t size = TEMP_FAILURE_RETRY(::read(ours.get(), part, sizeof part));
    if (size > 0) text.append(part, static_cast<size_t>(size));
    ended = size <= 0;
    if (by_steps) until = Deadline::In(options.each_step);
  }
  std::string step = TakeSteps(text);
  const bool gone = End(child);
  if (ended) return FromBytes(text);
  return Fail(NoAnswer(step, cancelled, gone ? 0 : child));
}

}  // namespace stasis
