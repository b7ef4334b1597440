#include "api/helper_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <string>

#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"

namespace stasis::api {
namespace {

constexpr std::chrono::milliseconds kFlushTimeout{200};

// Set when all writers have closed the pipe. Never destroyed, because the thread outlives main().
std::promise<void>& EndPromise() {
  static auto& promise = *new std::promise<void>();
  return promise;
}
std::future<void>& EndOfOutput() {
  static auto& future = *new std::future<void>();
  return future;
}

class Lines {
 public:
  void Append(std::string_view bytes) {
    for (char c : bytes) {
      if (c == '\n') {
        LogLine();
      } else if (line_.size() < kMaxHelperLineBytes) {
        line_ += c;
      }
    }
  }

 private:
  void LogLine() {
    if (!line_.empty() && logged_ <= kMaxHelperLines) {
      const bool last = logged_++ == kMaxHelperLines;
      log::Write(log::Level::kWarn, last ? "further output of helpers is dropped" : line_,
                 {{"source", std::string("helper")}});
    }
    line_.clear();
  }

  std::string line_;
  int logged_ = 0;
};

}  // namespace

Status CaptureHelperOutput() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  auto work = [fd = std::move(ours)] {
    Lines lines;
    char bytes[4096];
    for (;;) {
      const ssize_t got = ::read(fd.get(), bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      lines.Append({bytes, static_cast<size_t>(got)});
    }
    EndPromise().set_value();
  };
  STASIS_ASSIGN(Thread thread, Thread::Start(std::move(work)));
  std::move(thread).Detach();
  if (::dup2(theirs.get(), STDERR_FILENO) < 0) return FailErrno(errno, "dup2");
  EndOfOutput() = EndPromise().get_future();
  return {};
}

void FlushHelperOutput() {
  if (!EndOfOutput().valid()) return;
  auto null = Open("/dev/null", O_WRONLY);
  if (null && ::dup2(null->get(), STDERR_FILENO) >= 0) EndOfOutput().wait_for(kFlushTimeout);
}

}  // namespace stasis::api
