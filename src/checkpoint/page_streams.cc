#include "checkpoint/page_streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "base/page_size.h"
#include "base/parallel.h"
#include "dataplane/prefault.h"
#include "store/beneath.h"

namespace stasis::checkpoint {
namespace {

// The number of the first pipe in CRIU.
constexpr int kFirstFd = 30;
// Pipes hold references to so many bytes of the program. The kernel grants a user without
// privileges 64 MiB for all pipes, and 1 MiB for one.
constexpr int kPipeBytes = 1 << 20;
constexpr int kSmallPipeBytes = 1 << 19;  // if there are more than
constexpr size_t kManyFiles = 16;
// CRIU fills 8 MiB of its own pipes before it empties them into one of these. In a pipe of that
// size it does not wait for the threads. Only the first files of a large program get one, because
// of the limit for a user, and because all of a small process would be in the pipe when CRIU leaves
// the process (CheckPages). By default the kernel grants it to privileged users only.
constexpr int kLargePipeBytes = 8 << 20;
constexpr size_t kLargePipes = 3;
constexpr uint64_t kLargeProgramBytes = 256 << 20;
constexpr unsigned kMostThreads = 8;

constexpr uint64_t kPageBytes = 4096;

// What CRIU lets a process execute: a system call, and then a breakpoint.
#if defined(__x86_64__)
constexpr unsigned char kCriuCode[] = {0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc};
#elif defined(__aarch64__)
constexpr unsigned char kCriuCode[] = {0x01, 0x00, 0x00, 0xd4, 0x00, 0x00, 0x20, 0xd4};
#endif

std::string NameOf(size_t index) { return fmt::format("pages-{}.img", index + 1); }

// The pipe has the first size that the kernel grants. A smaller pipe is only slower.
Result<std::pair<UniqueFd, UniqueFd>> MakePipe(std::initializer_list<int> sizes) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
  for (const int bytes : sizes) {
    if (::fcntl(fds[0], F_SETPIPE_SZ, bytes) >= 0) break;
  }
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Error NoMemory(int error) {
  Error failed = ErrnoError(error, "allocate memory for the program's CPU memory");
  failed.code = Code::kResourceExhausted;
  return failed;
}

}  // namespace

Result<std::unique_ptr<PageStreams>> PageStreams::Reserve(uint64_t expected_bytes,
                                                          uint64_t most_bytes) {
  const uint64_t page = stasis::PageBytes();
  const auto whole_pages = [&](uint64_t bytes) { return (bytes + page - 1) / page * page; };
  std::unique_ptr<PageStreams> streams(new PageStreams());
  streams->expected_bytes_ = expected_bytes;
  streams->most_bytes_ = std::max(whole_pages(std::max(most_bytes, expected_bytes)), page);
  void* memory = ::mmap(nullptr, streams->most_bytes_, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return Fail(NoMemory(errno));
  streams->memory_ = static_cast<char*>(memory);
  ::madvise(memory, streams->most_bytes_, MADV_DONTDUMP);
  streams->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!streams->wake_) return FailErrno(errno, "eventfd");
  if (expected_bytes > 0) {
    dataplane::Prefaulter touched(streams->memory_, {{0, whole_pages(expected_bytes)}},
                                  ProcessorCount());
    STASIS_TRY(touched.Wait(0));
  }
  return streams;
}

PageStreams::~PageStreams() {
  Stop();
  if (memory_ == nullptr) return;
  Free();  // also in a child process that hangs
  ::munmap(memory_, most_bytes_);
}

Status PageStreams::MakeLinks(int folder_fd, size_t files) {
  const int usual = files > kManyFiles ? kSmallPipeBytes : kPipeBytes;
  const bool is_large = expected_bytes_ >= kLargeProgramBytes;
  for (size_t i = 0; i < std::min(files, kMostFiles); ++i) {
    const int most = is_large && i < kLargePipes ? kLargePipeBytes : usual;
    STASIS_ASSIGN(auto ends, MakePipe({most, usual}));
    const std::string target = fmt::format("/proc/self/fd/{}", kFirstFd + i);
    if (::symlinkat(target.c_str(), folder_fd, NameOf(i).c_str()) != 0) {
      return FailErrno(errno, "make a symbolic link in CRIU's folder");
    }
    Pipe& pipe = pipes_.emplace_back();
    pipe.read = std::move(ends.first);
    pipe.write = std::move(ends.second);
  }
  return {};
}

Status PageStreams::Link(int folder_fd, size_t files) {
  Status made = MakeLinks(folder_fd, files);
  if (made) return {};
  for (size_t i = 0; i < pipes_.size(); ++i) ::unlinkat(folder_fd, NameOf(i).c_str(), 0);
  pipes_.clear();
  return made;
}

std::map<int, int> PageStreams::descriptors() const {
  std::map<int, int> fds;
  for (size_t i = 0; i < pipes_.size(); ++i) {
    fds[kFirstFd + static_cast<int>(i)] = pipes_[i].write.get();
  }
  return fds;
}

Status PageStreams::Start() {
  threads_ = StartThreads(std::min(ProcessorCount(), kMostThreads), [this] { Receive(); });
  if (!threads_.empty()) return {};
  return Fail(Code::kResourceExhausted, "no thread could be started that receives CPU memory");
}

void PageStreams::CloseOurEnds() {
  for (Pipe& pipe : pipes_) pipe.write.Reset();
}

void PageStreams::Wake() const { (void)::eventfd_write(wake_.get(), 1); }

// Waits for a pipe with data, or one that CRIU has closed. Returns null if there will be none, or
// if nothing more is wanted. CRIU has written all of a file before it begins the next one, so the
// first such pipe comes first.
Result<PageStreams::Pipe*> PageStreams::AwaitData() {
  std::vector<pollfd> waiting = {{wake_.get(), POLLIN, 0}};
  std::vector<Pipe*> open;
  for (Pipe& pipe : pipes_) {
    if (pipe.ended || !pipe.read) continue;
    waiting.push_back({pipe.read.get(), POLLIN, 0});
    open.push_back(&pipe);
  }
  if (open.empty() || stopping_) return nullptr;
  if (TEMP_FAILURE_RETRY(::poll(waiting.data(), waiting.size(), -1)) < 0) {
    return FailErrno(errno, "wait for CRIU's pipes");
  }
  if (stopping_) return nullptr;
  for (size_t i = 0; i < open.size(); ++i) {
    if (waiting[i + 1].revents != 0) return open[i];
  }
  return nullptr;  // Finish() was called, and the pipes are empty
}

// Returns the place in memory of the next bytes of a file.
Result<uint64_t> PageStreams::Place(Pipe& pipe, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (pipe.bytes == 0) pipe.begin = used_bytes_;
  if (pipe.begin + pipe.bytes != used_bytes_) {
    return Fail(Code::kInternal, "CRIU wrote two files of CPU memory at the same time");
  }
  if (bytes > most_bytes_ - used_bytes_) {
    return Fail(Code::kResourceExhausted,
                fmt::format("the program has more than {} MiB of CPU memory", most_bytes_ >> 20));
  }
  pipe.bytes += bytes;
  return std::exchange(used_bytes_, used_bytes_ + bytes);
}

// Returns false if there is nothing more to receive. The thread takes references to pages out of
// CRIU's pipe into its own one, so that several threads copy pages at the same time.
Result<bool> PageStreams::ReceivePiece(int scratch_read, int scratch_write) {
  uint64_t left = 0, at = 0;
  {
    std::lock_guard lock(taking_);
    STASIS_ASSIGN(Pipe* const pipe, AwaitData());
    if (pipe == nullptr) return false;
    const ssize_t taken = TEMP_FAILURE_RETRY(
        ::splice(pipe->read.get(), nullptr, scratch_write, nullptr, kPipeBytes, SPLICE_F_NONBLOCK));
    if (taken < 0 && errno == EAGAIN) return true;
    if (taken < 0) return FailErrno(errno, "read CRIU's pipe");
    pipe->ended = taken == 0;
    left = static_cast<uint64_t>(taken);
    if (left > 0) {
      STASIS_ASSIGN(at, Place(*pipe, left));
    }
  }
  const uint64_t begin = at;
  while (left > 0) {
    const ssize_t n = TEMP_FAILURE_RETRY(::read(scratch_read, memory_ + at, left));
    if (n < 0) return Fail(NoMemory(errno));
    if (n == 0) return Fail(Code::kInternal, "a pipe lost bytes");
    at += static_cast<uint64_t>(n);
    left -= static_cast<uint64_t>(n);
  }
  STASIS_TRY(CheckPages(begin, at));
  return true;
}

// CRIU goes on with a process when it has written references to the pages, and the page at the
// start of the first executable mapping then has CRIU's code for a moment. A page that was read in
// this moment would be wrong in the image.
Status PageStreams::CheckPages(uint64_t begin, uint64_t end) const {
  for (uint64_t at = begin / kPageBytes * kPageBytes; at + sizeof kCriuCode <= end;
       at += kPageBytes) {
    if (std::memcmp(memory_ + at, kCriuCode, sizeof kCriuCode) != 0) continue;
    return Fail(Code::kAborted, "a page was read while CRIU used it");
  }
  return {};
}

void PageStreams::Receive() {
  auto scratch = MakePipe({kPipeBytes});
  if (!scratch) return FailWith(std::move(scratch).error());
  for (;;) {
    auto more = ReceivePiece(scratch->first.get(), scratch->second.get());
    if (!more) return FailWith(std::move(more).error());
    if (!*more) return;
  }
}

// Closes the pipes, so that CRIU does not wait for a thread that will not come.
void PageStreams::FailWith(Error error) {
  {
    std::lock_guard lock(mutex_);
    if (status_) status_ = Fail(std::move(error));
  }
  stopping_ = true;
  Wake();
  std::lock_guard lock(taking_);
  for (Pipe& pipe : pipes_) pipe.read.Reset();
}

Status PageStreams::Finish() {
  Wake();
  threads_.clear();
  STASIS_TRY(status());
  for (const Pipe& pipe : pipes_) {
    int left = 0;
    if (pipe.ended) continue;
    if (::ioctl(pipe.read.get(), FIONREAD, &left) != 0) return FailErrno(errno, "FIONREAD");
    if (left != 0) return Fail(Code::kInternal, "bytes were left in a pipe of CRIU's");
  }
  return {};
}

void PageStreams::Stop() {
  stopping_ = true;
  if (wake_) Wake();
  threads_.clear();
  for (Pipe& pipe : pipes_) {
    pipe.read.Reset();
    pipe.write.Reset();
  }
}

Status PageStreams::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

std::vector<StreamedFile> PageStreams::files() const {
  std::lock_guard lock(mutex_);
  std::vector<StreamedFile> files;
  for (size_t i = 0; i < pipes_.size(); ++i) {
    if (pipes_[i].bytes == 0) continue;
    files.push_back({NameOf(i), pipes_[i].begin, pipes_[i].bytes});
  }
  return files;
}

uint64_t PageStreams::bytes() const {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}

Status PageStreams::RemoveLinks(int folder_fd, const std::vector<StreamedFile>& files) {
  STASIS_ASSIGN(const auto entries, store::ListFolder(folder_fd));
  // CRIU numbers its files of pages from 1, and each has a file that says which pages these are.
  const auto written = static_cast<size_t>(
      std::count_if(entries.begin(), entries.end(), [](const store::Entry& entry) {
        return entry.is_regular && entry.name.starts_with("pagemap-");
      }));
  for (size_t i = 0; i < kMostFiles; ++i) {
    const std::string name = NameOf(i);
    struct stat st;
    if (::fstatat(folder_fd, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(st.st_mode)) {
      continue;
    }
    if (::unlinkat(folder_fd, name.c_str(), 0) != 0) return FailErrno(errno, "remove " + name);
    const bool is_streamed = std::any_of(
        files.begin(), files.end(), [&](const StreamedFile& file) { return file.name == name; });
    if (is_streamed || i >= written) continue;
    STASIS_TRY(store::OpenBeneath(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL));
  }
  return {};
}

Result<std::vector<store::FileInMemory>> PageStreams::Content(
    const std::vector<StreamedFile>& files) const {
  std::vector<store::FileInMemory> content;
  for (const StreamedFile& file : files) {
    if (file.begin > most_bytes_ || file.bytes > most_bytes_ - file.begin) {
      return Fail(Code::kInternal, file.name + " is not in memory");
    }
    content.push_back({file.name, {memory_ + file.begin, file.bytes}});
  }
  return content;
}

void PageStreams::Free() { (void)::madvise(memory_, most_bytes_, MADV_REMOVE); }

}  // namespace stasis::checkpoint
