#include "slurm/error_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"

namespace stasis::slurm {
namespace {

constexpr char kOption[] = "--errors";
constexpr size_t kBuffer = 64 << 10;
constexpr uint64_t kFreedAtOnce = 1 << 20;

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

Result<ErrorOutput> ErrorOutput::Follow(const std::string& path) {
  ErrorOutput output;
  STASIS_ASSIGN(output.file_, Open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW));
  output.watch_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!output.watch_ || ::inotify_add_watch(output.watch_.get(), path.c_str(), IN_MODIFY) < 0) {
    return FailErrno(errno, "watch " + path);
  }
  struct stat info {};
  if (::fstat(output.file_.get(), &info) != 0) return FailErrno(errno, "stat " + path);
  output.offset_ = static_cast<uint64_t>(info.st_size);
  return output;
}

void ErrorOutput::Copy(int target) {
  char buffer[kBuffer];
  // Before the file is read, so that no addition is missed.
  while (::read(watch_.get(), buffer, sizeof buffer) > 0) {
  }
  for (;;) {
    const ssize_t got = ::pread(file_.get(), buffer, sizeof buffer, static_cast<off_t>(offset_));
    if (got <= 0) break;
    (void)WriteAll(target, {buffer, static_cast<size_t>(got)});
    offset_ += static_cast<uint64_t>(got);
  }
  // Freeing wakes fd() up once more.
  if (offset_ - freed_ < kFreedAtOnce) return;
  freed_ = offset_;
  // Not every file system can do it.
  (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(offset_));
}

}  // namespace stasis::slurm
