#include "service/helper_words.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/log.h"

namespace stasis::service {
namespace {

constexpr std::chrono::milliseconds kPatience{200};

// Kept when once nobody can write any more. It outlives the thread, which outlives main().
std::promise<void>& ReadAll() {
  static auto& promise = *new std::promise<void>();
  return promise;
}
std::future<void>& Heard() {
  static auto& future = *new std::future<void>();
  return future;
}

class Lines {
 public:
  void Take(std::string_view bytes) {
    for (char c : bytes) {
      if (c == '\n') {
        Say();
      } else if (line_.size() < kMaxHelperLineBytes) {
        line_ += c;
      }
    }
  }

 private:
  void Say() {
    if (!line_.empty() && said_ <= kMaxHelperLines) {
      const bool last = said_++ == kMaxHelperLines;
      log::Write(log::Level::kWarn, last ? "helpers say more than is kept" : line_,
                 {{"source", std::string("helper")}});
    }
    line_.clear();
  }

  std::string line_;
  int said_ = 0;
};

}  // namespace

Status ListenToHelpers() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  if (::dup2(theirs.get(), STDERR_FILENO) < 0) return FailErrno(errno, "dup2");
  Heard() = ReadAll().get_future();
  std::thread([fd = std::move(ours)] {
    Lines lines;
    char bytes[4096];
    for (;;) {
      const ssize_t got = ::read(fd.get(), bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      lines.Take({bytes, static_cast<size_t>(got)});
    }
    ReadAll().set_value();
  }).detach();
  return {};
}

void HearHelpersOut() {
  if (!Heard().valid()) return;
  auto null = Open("/dev/null", O_WRONLY);
  if (null && ::dup2(null->get(), STDERR_FILENO) >= 0) Heard().wait_for(kPatience);
}

}  // namespace stasis::service
