#include "jobs/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"

namespace stasis::jobs {

LogReader::LogReader(const std::string& path, uint64_t offset) : offset_(offset) {
  if (auto fd = Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY)) fd_ = std::move(*fd);
  struct stat st {};
  regular_ = fd_ && ::fstat(fd_.get(), &st) == 0 && S_ISREG(st.st_mode);
}

uint64_t LogReader::TailOffset(const std::string& path, uint64_t bytes) {
  LogReader log(path, 0);
  struct stat st {};
  if (!log.regular_ || ::fstat(log.fd_.get(), &st) != 0) return 0;
  auto size = static_cast<uint64_t>(st.st_size);
  if (size <= bytes) return 0;
  log.offset_ = size - bytes;
  auto tail = log.Next();
  size_t line_end = tail ? tail->find('\n') : std::string::npos;
  return line_end == std::string::npos ? size - bytes
                                       : std::min(log.offset_ - tail->size() + line_end + 1, size);
}

void LogReader::SkipHole(uint64_t size) {
  off_t data = ::lseek(fd_.get(), static_cast<off_t>(offset_), SEEK_DATA);
  // ENXIO: the file has only a hole from here on. The next read reports other errors.
  if (data < 0 && errno == ENXIO) data = static_cast<off_t>(std::max(size, offset_));
  if (data <= static_cast<off_t>(offset_)) return;
  offset_ = static_cast<uint64_t>(data);
  in_line_ = true;
}

Result<std::string> LogReader::Next() {
  if (!regular_) return std::string();  // a device: nothing can be read back
  std::string text(64 << 10, '\0');
  for (;;) {
    struct stat st {};
    if (::fstat(fd_.get(), &st) != 0) return FailErrno(errno, "stat the log");
    const auto size = static_cast<uint64_t>(st.st_size);
    if (size < offset_) offset_ = 0;
    SkipHole(size);
    ssize_t n = TEMP_FAILURE_RETRY(
        ::pread(fd_.get(), text.data(), text.size(), static_cast<off_t>(offset_)));
    if (n < 0) return FailErrno(errno, "read the log");
    if (n == 0) return std::string();
    // A hole was punched during the read.
    if (text[0] == '\0' &&
        ::lseek(fd_.get(), static_cast<off_t>(offset_), SEEK_DATA) != static_cast<off_t>(offset_)) {
      continue;
    }
    offset_ += static_cast<uint64_t>(n);
    text.resize(static_cast<size_t>(n));
    if (!in_line_) return text;
    in_line_ = false;
    // Without a line end, show the partial line.
    if (size_t end = text.find('\n'); end != text.npos) text.erase(0, end + 1);
    if (!text.empty()) return text;
    text.resize(64 << 10);
  }
}

Result<bool> LogReader::Copy() {
  for (;;) {
    STASIS_ASSIGN(std::string text, Next());
    if (text.empty()) return true;
    Status written = WriteAll(STDOUT_FILENO, text);
    if (written) continue;
    if (written.error().raw == EPIPE) return false;
    return Fail(
        ErrnoError(static_cast<int>(written.error().raw), "cannot write the log to standard output")
            .WithHint("The job itself is not affected."));
  }
}

}  // namespace stasis::jobs
