#include "slurm/error_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "slurm/watch.h"

namespace stasis::slurm {
namespace {

constexpr char kOption[] = "--errors";
constexpr size_t kCopiedAtOnce = 1 << 20;
constexpr uint64_t kFreedAtOnce = 1 << 20;
// A line that is added while the file is truncated is lost, so this is done less often.
constexpr uint64_t kTruncatedAtOnce = 16 << 20;

// Waits until a write will not block, or will fail.
bool IsWritable(int target, const Deadline& deadline) {
  pollfd ready{target, POLLOUT, 0};
  return target < 0 || TEMP_FAILURE_RETRY(::poll(&ready, 1, deadline.PollTimeout())) != 0;
}

// Writes a part of `text` after IsWritable, without blocking: a pipe that is writable has room for
// PIPE_BUF bytes. Returns the number of bytes, all if they cannot be written, and 0 if the target
// is not writable after all.
size_t WritePart(int target, std::string_view text) {
  const ssize_t written =
      TEMP_FAILURE_RETRY(::write(target, text.data(), std::min<size_t>(text.size(), PIPE_BUF)));
  if (written >= 0) return static_cast<size_t>(written);
  return errno == EAGAIN ? 0 : text.size();
}

}  // namespace

bool AreApart(int out, int err) {
  struct stat first {
  }, second{};
  if (::fstat(out, &first) != 0 || ::fstat(err, &second) != 0) return false;
  if (::isatty(out) != 0 || ::isatty(err) != 0) return false;
  return FileId::Of(first) != FileId::Of(second);
}

std::vector<std::string> WordsWithErrors(const std::string& step, const std::string& file,
                                         const std::vector<std::string>& program) {
  std::vector<std::string> words = {step, kOption, file, "--"};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

int ExecWithErrors(const std::vector<std::string>& words) {
  if (words.size() < 4 || words[0] != kOption || words[2] != "--") return -1;
  // For appending: the offset of a restored program would be that of the dump.
  auto file = Open(words[1], O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW);
  std::string problem;
  if (!file || ::dup2(file->get(), STDERR_FILENO) < 0) {
    problem = "cannot open " + words[1];
  } else {
    file->Reset();
    std::vector<char*> argv;
    for (size_t i = 3; i < words.size(); ++i) argv.push_back(const_cast<char*>(words[i].c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    problem = "cannot run " + words[3];
  }
  const int error = errno;
  (void)WriteAll(STDERR_FILENO,
                 fmt::format("stasis-step: {}: {}\n", problem, std::strerror(error)));
  return error == ENOENT ? 127 : 126;
}

void WriteUntil(const Deadline& deadline, int target, std::string_view text) {
  while (!text.empty() && IsWritable(target, deadline)) {
    text.remove_prefix(WritePart(target, text));
    if (deadline.passed()) return;
  }
}

Result<ErrorOutput> ErrorOutput::Follow(const std::string& path, Fallocate fallocate) {
  ErrorOutput output;
  output.fallocate_ = fallocate != nullptr ? fallocate : ::fallocate;
  STASIS_ASSIGN(output.file_, Open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW));
  STASIS_ASSIGN(output.watch_, Watch(path, IN_MODIFY));
  struct stat info {};
  if (::fstat(output.file_.get(), &info) != 0) return FailErrno(errno, "stat " + path);
  output.offset_ = static_cast<uint64_t>(info.st_size);
  return output;
}

bool ErrorOutput::Copy(int target) {
  char buffer[PIPE_BUF];
  // Before the file is read, so that no addition is missed. Once, because a program may add to the
  // file all the time.
  (void)!::read(watch_.get(), buffer, sizeof buffer);
  const Deadline now = Deadline::In(std::chrono::milliseconds(0));
  bool more = true;
  for (size_t copied = 0; copied < kCopiedAtOnce;) {
    const ssize_t got = ::pread(file_.get(), buffer, sizeof buffer, static_cast<off_t>(offset_));
    more = got > 0;
    if (!more || !IsWritable(target, now)) break;
    const size_t written = WritePart(target, {buffer, static_cast<size_t>(got)});
    if (written == 0) break;
    copied += written;
    offset_ += written;
  }
  FreeSpace();
  return more;
}

void ErrorOutput::CopyAll(int target, const Deadline& deadline) {
  while (Copy(target) && !deadline.passed() && IsWritable(target, deadline)) {
  }
}

void ErrorOutput::FreeSpace() {
  if (offset_ - freed_ < kFreedAtOnce) return;
  // Freeing wakes fd() up once more.
  if (fallocate_(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                 static_cast<off_t>(offset_)) == 0) {
    freed_ = offset_;
    return;
  }
  // Not every file system can do it (NFS before 4.2). The program appends, so that its next line
  // is at the beginning of a truncated file.
  struct stat info {};
  if (offset_ < kTruncatedAtOnce || ::fstat(file_.get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != offset_) {
    return;
  }
  if (::ftruncate(file_.get(), 0) == 0) offset_ = freed_ = 0;
}

}  // namespace stasis::slurm
