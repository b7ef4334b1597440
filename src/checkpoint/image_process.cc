#include "checkpoint/image_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/bounded.h"
#include "base/fd.h"
#include "base/task_limits.h"
#include "base/thread.h"
#include "ipc/socket.h"

namespace stasis::checkpoint {
namespace {

using std::chrono::milliseconds;

// A frame is a head and `size` bytes. The bytes of a progress frame are two numbers: done and
// total.
enum class Kind : uint32_t { kRequest, kProgress, kAnswer };
struct Head {
  Kind kind;
  int32_t timeout_ms;  // of a request; negative for no deadline
  uint64_t size;
};
constexpr uint64_t kMostBytes = 256u << 20;

// The child itself stops at the deadline of a task. If it has not answered this long after the
// deadline, it is hung.
constexpr milliseconds kGrace{2000};
// How long to wait for the end of a killed child. Only a child that blocks in the kernel takes
// longer.
constexpr milliseconds kToBeKilled{1000};
constexpr milliseconds kBetweenProgress{20};

enum class Io { kDone, kEnd, kLate };

// No system call blocks beyond the deadline, because the other process may hang or be stopped.
Io SendAll(int socket, const void* data, size_t size, const Deadline& deadline) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    pollfd ready{socket, POLLOUT, 0};
    const int n = TEMP_FAILURE_RETRY(::poll(&ready, 1, deadline.PollTimeout()));
    if (n == 0) return Io::kLate;
    const ssize_t sent = TEMP_FAILURE_RETRY(::send(socket, at, size, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (sent < 0 && errno == EAGAIN) continue;
    if (n < 0 || sent <= 0) return Io::kEnd;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return Io::kDone;
}

Io SendFrame(int socket, Kind kind, std::string_view bytes, const Deadline& deadline,
             int32_t timeout_ms = 0) {
  const Head head{kind, timeout_ms, bytes.size()};
  if (Io sent = SendAll(socket, &head, sizeof head, deadline); sent != Io::kDone) return sent;
  return SendAll(socket, bytes.data(), bytes.size(), deadline);
}

Io ReceiveAll(int socket, void* data, size_t size, const Deadline& deadline) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    pollfd ready{socket, POLLIN, 0};
    const int n = TEMP_FAILURE_RETRY(::poll(&ready, 1, deadline.PollTimeout()));
    if (n == 0) return Io::kLate;
    const ssize_t got = TEMP_FAILURE_RETRY(::recv(socket, at, size, MSG_DONTWAIT));
    if (got < 0 && errno == EAGAIN) continue;
    if (n < 0 || got <= 0) return Io::kEnd;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return Io::kDone;
}

Io ReceiveFrame(int socket, Head& head, std::string& bytes, const Deadline& deadline) {
  if (Io got = ReceiveAll(socket, &head, sizeof head, deadline); got != Io::kDone) return got;
  if (head.size > kMostBytes) return Io::kEnd;
  bytes.resize(head.size);
  return ReceiveAll(socket, bytes.data(), bytes.size(), deadline);
}

// The functions from here to ServeAll run in the child.

// Serves one request. Returns false when the parent has closed the socket.
bool ServeOnce(int socket, const ImageProcess::Task& task) {
  Head head;
  std::string request;
  if (ReceiveFrame(socket, head, request, Deadline()) != Io::kDone) return false;
  const Deadline deadline =
      head.timeout_ms < 0 ? Deadline() : Deadline::In(milliseconds(head.timeout_ms));
  std::mutex mutex;  // guards the socket and `next`
  auto next = Deadline::Clock::now();
  auto progress = [&](uint64_t done, uint64_t total) {
    std::lock_guard lock(mutex);
    const auto now = Deadline::Clock::now();
    if (now < next && done < total) return !deadline.passed();
    next = now + kBetweenProgress;
    const uint64_t numbers[] = {done, total};
    const std::string_view bytes{reinterpret_cast<const char*>(numbers), sizeof numbers};
    return SendFrame(socket, Kind::kProgress, bytes, Deadline()) == Io::kDone && !deadline.passed();
  };
  const auto answer = task(request, progress);
  std::lock_guard lock(mutex);
  return SendFrame(socket, Kind::kAnswer, ToBytes(answer), Deadline()) == Io::kDone;
}

void Serve(int socket, const ImageProcess::Task& task) {
  while (ServeOnce(socket, task)) {
  }
}

[[noreturn]] void ServeAll(const std::map<std::string, ImageProcess::Task>& tasks,
                           const std::map<std::string, int>& sockets, std::vector<int> fds,
                           pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  // Only the parent handles Ctrl-C.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  for (const auto& [name, socket] : sockets) fds.push_back(socket);
  CloseAllBut(std::move(fds));
  std::vector<Thread> threads;
  bool refused = false;
  const auto& [own, own_task] = *tasks.begin();  // this thread serves the first task
  for (const auto& [name, task] : tasks) {
    if (name == own) continue;
    const int socket = sockets.at(name);
    auto thread = Thread::Start([socket, &task = task] { Serve(socket, task); });
    if (thread) {
      threads.push_back(std::move(*thread));
    } else {
      (void)SendFrame(socket, Kind::kAnswer, ToBytes(Fail(std::move(thread).error())), Deadline());
      refused = true;
    }
  }
  Serve(sockets.at(own), own_task);
  for (auto& thread : threads) thread.Join();
  // Stay alive until the parent has read the error as the answer to its request. The parent then
  // kills this process.
  if (refused) ::pause();
  ::_exit(0);
}

}  // namespace

struct ImageProcess::State {
  std::string place;
  std::map<std::string, UniqueFd> sockets;  // by task
  pid_t pid = -1;
  UniqueFd pidfd;
  mutable std::mutex mutex;  // guards all members below
  bool killed = false;
  bool reaped = false;
};

ImageProcess::ImageProcess(std::unique_ptr<State> state) : state_(std::move(state)) {}

ImageProcess::~ImageProcess() { End(); }

Result<std::unique_ptr<ImageProcess>> ImageProcess::Start(std::map<std::string, Task> tasks,
                                                          const std::vector<int>& keep_fds,
                                                          std::string place) {
  auto state = std::make_unique<State>();
  state->place = std::move(place);
  std::vector<UniqueFd> theirs;
  std::map<std::string, int> numbers;
  for (const auto& [name, task] : tasks) {
    STASIS_ASSIGN(ipc::SocketPair ends, ipc::MakeSocketPair(SOCK_STREAM));
    state->sockets[name] = std::move(ends.ours);
    numbers[name] = ends.theirs.get();
    theirs.push_back(std::move(ends.theirs));
  }
  // SAFETY: as in AskBounded (base/bounded.cc). The plan starts its threads after this call.
  const pid_t parent = ::getpid();
  state->pid = ::fork();
  if (state->pid < 0) return Fail(TaskError(errno, "fork"));
  if (state->pid == 0) ServeAll(tasks, numbers, keep_fds, parent);
  state->pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, state->pid, 0)));
  const int error = errno;
  std::unique_ptr<ImageProcess> process(new ImageProcess(std::move(state)));
  if (!process->state_->pidfd) return FailErrno(error, "pidfd_open");
  return process;
}

void ImageProcess::End() {
  std::lock_guard lock(state_->mutex);
  if (state_->killed) return;
  state_->killed = true;
  ::kill(state_->pid, SIGKILL);
  pollfd end{state_->pidfd.get(), POLLIN, 0};
  const Deadline deadline = Deadline::In(kToBeKilled);
  (void)TEMP_FAILURE_RETRY(::poll(&end, 1, deadline.PollTimeout()));
  state_->reaped = ::waitpid(state_->pid, nullptr, WNOHANG) != 0;
  // Shutting the sockets down wakes threads that wait for an answer, even if the child hangs.
  for (const auto& [name, socket] : state_->sockets) ::shutdown(socket.get(), SHUT_RDWR);
}

std::string ImageProcess::stuck() const {
  std::lock_guard lock(state_->mutex);
  if (!state_->killed || state_->reaped) return {};
  return fmt::format(
      "{} does not answer. The helper process {} is blocked there in the kernel and ends when its "
      "system call returns",
      state_->place, state_->pid);
}

Result<std::string> ImageProcess::Run(const std::string& task, const std::string& request,
                                      const Deadline& deadline, const Progress& progress) {
  const Deadline hung = deadline.Plus(kGrace);
  return Ask(
      task, request, deadline.PollTimeout(), [hung] { return hung; }, progress);
}

Result<std::string> ImageProcess::RunWhileItMoves(const std::string& task,
                                                  const std::string& request,
                                                  std::chrono::milliseconds silence) {
  auto answer = Ask(
      task, request, -1, [silence] { return Deadline::In(silence); },
      [](uint64_t, uint64_t) { return true; });
  if (!answer && answer.error().code == Code::kDeadlineExceeded && stuck().empty()) {
    answer.error().message = state_->place + " does not answer";
  }
  return answer;
}

// `until` is called before each frame is sent or received, and returns the deadline for this frame.
// If the frame is late, the child is hung.
Result<std::string> ImageProcess::Ask(const std::string& task, const std::string& request,
                                      int32_t timeout_ms, const std::function<Deadline()>& until,
                                      const Progress& progress) {
  const int socket = state_->sockets.at(task).get();
  auto died = [&]() -> Error {
    {
      std::lock_guard lock(state_->mutex);
      if (state_->killed) return {.code = Code::kCancelled, .message = "cancelled"};
    }
    End();
    return {.code = Code::kInternal, .message = "the process that writes the image died"};
  };
  auto late = [&]() -> Error {
    End();
    const std::string left = stuck();
    return {.code = Code::kDeadlineExceeded, .message = left.empty() ? "it took too long" : left};
  };
  const Io sent = SendFrame(socket, Kind::kRequest, request, until(), timeout_ms);
  if (sent != Io::kDone) return Fail(sent == Io::kLate ? late() : died());
  while (true) {
    Head head;
    std::string bytes;
    const Io got = ReceiveFrame(socket, head, bytes, until());
    if (got != Io::kDone) return Fail(got == Io::kLate ? late() : died());
    if (head.kind == Kind::kAnswer) return FromBytes(bytes);
    uint64_t numbers[2] = {};
    std::memcpy(numbers, bytes.data(), std::min(bytes.size(), sizeof numbers));
    if (progress(numbers[0], numbers[1])) continue;
    End();
    return Fail(Code::kCancelled, "cancelled");
  }
}

}  // namespace stasis::checkpoint
