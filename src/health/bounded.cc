#include "health/bounded.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"
#include "base/file.h"

namespace stasis::health {
namespace {

constexpr int kChildsEnd = 3;
constexpr size_t kLongestAnswer = 64u << 10;

// The first byte says whether an answer or an error's text and hint follow.
constexpr char kAnswer = 'a', kError = 'e';

std::string Encode(const Result<std::string>& answer) {
  if (answer) return kAnswer + answer->substr(0, kLongestAnswer);
  const Error& error = answer.error();
  return std::string{kError, static_cast<char>(error.code)} +
         error.ToString().substr(0, kLongestAnswer / 2) + '\0' +
         error.hint.substr(0, kLongestAnswer / 2 - 3);
}

Result<std::string> Decode(const std::string& text) {
  if (text.starts_with(kAnswer)) return text.substr(1);
  if (text.size() < 2 || text[0] != kError) {
    return Fail(Code::kInternal, "the process that was to find it out has died");
  }
  const size_t end = std::min(text.find('\0', 2), text.size());
  return Fail(static_cast<Code>(text[1]), text.substr(2, end - 2),
              end < text.size() ? text.substr(end + 1) : "");
}

}  // namespace

Result<std::string> AskBounded(const std::function<Result<std::string>()>& question,
                               const Deadline& deadline) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
  UniqueFd ours(ends[0]), its(ends[1]);
  // SAFETY: the child goes on with the code of ours. glibc has its locks put right after a fork,
  // and nobody of ours holds another one here.
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return FailErrno(errno, "fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    // Should it be left behind, it holds nothing of ours: no helper waits for the end of a socket.
    ::dup2(its.get(), kChildsEnd);
    ::close_range(kChildsEnd + 1, ~0u, 0);
    (void)WriteAll(kChildsEnd, Encode(question()));
    ::_exit(0);
  }
  its.Reset();
  std::string text;
  bool ended = false;
  while (!ended && text.size() <= kLongestAnswer) {
    pollfd ready{ours.get(), POLLIN, 0};
    if (TEMP_FAILURE_RETRY(::poll(&ready, 1, deadline.PollTimeout())) <= 0) break;
    char part[4096];
    const ssize_t size = TEMP_FAILURE_RETRY(::read(ours.get(), part, sizeof part));
    if (size > 0) text.append(part, static_cast<size_t>(size));
    ended = size <= 0;
  }
  if (!ended) ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, ended ? 0 : WNOHANG);
  if (!ended) return Fail(Code::kDeadlineExceeded, "it did not answer in time");
  return Decode(text);
}

}  // namespace stasis::health
