// stasis-worker: executes one call of the daemon with the caller's credentials, and exits. If the
// daemon exits first, an operation continues; any other call ends.
//
//   0  the WorkerRequest (a file)      1  frames with WorkerFrame
//   2  stderr of helpers               3  the daemon's log
//   4  for Hold: the connection of CRIU's plugin
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <mutex>

#include "api/error_message.h"
#include "api/frames.h"
#include "api/helper_output.h"
#include "api/methods.h"
#include "api/worker_credentials.h"
#include "api/worker_log.h"
#include "base/descriptor_table.h"
#include "base/file.h"
#include "base/operation_id.h"
#include "base/rights.h"
#include "base/stop_when_readable.h"
#include "base/thread.h"

namespace stasis::api {
namespace {

std::atomic<bool> cancel_requested{false};
// Readable after a request to cancel.
int cancel_pipe[2] = {-1, -1};

class Frames {
 public:
  explicit Frames(int fd) : fd_(fd) {}
  // Returns kUnavailable if the daemon has exited. The work itself has not failed then.
  Status Write(const v1::WorkerFrame& frame) {
    std::lock_guard lock(mutex_);
    return WriteFrame(fd_, frame.SerializeAsString());
  }

 private:
  int fd_;
  std::mutex mutex_;
};

// Exits this process when the reader of its answer closes the pipe.
Status ExitWithReader(int fd) {
  auto work = [fd] {
    pollfd reader{fd, 0, 0};
    while (::poll(&reader, 1, -1) < 0 && errno == EINTR) {
    }
    ::_exit(0);
  };
  STASIS_ASSIGN(Thread thread, Thread::Start(work));
  std::move(thread).Detach();
  return {};
}

Result<v1::WorkerRequest> ReadRequest() {
  STASIS_ASSIGN(std::string bytes, ReadFile("/proc/self/fd/0"));
  v1::WorkerRequest request;
  if (!request.ParseFromString(bytes)) {
    return Fail(Code::kInternal, "the daemon's request cannot be read");
  }
  return request;
}

Result<std::string> Work(Frames& frames, const v1::WorkerRequest& request,
                         const MethodTraits& traits, const WorkerLog& log) {
  if (traits.operation && cancel_requested) {
    const std::string target = traits.has_target ? " " + TargetOf(request.request()) : "";
    return Fail(Error{.code = Code::kCancelled,
                      .message = "cancelled before it began",
                      .hint = "Everything is as it was before",
                      .context = {"cannot " + VerbOf(request.method()) + target}});
  }
  STASIS_TRY(JoinCallersCgroups(request));
  STASIS_TRY(TakeCredentials(request));
  STASIS_TRY(CaptureHelperOutput());
  if (traits.drops_rights) {
    // If this worker were dumpable without capabilities, the user's processes could trace it and
    // take descriptors that belong to the daemon.
    if (::prctl(PR_SET_DUMPABLE, 0L) != 0) return FailErrno(errno, "prctl");
    DropRights();
  }
  STASIS_ASSIGN(Call call, MakeCall(request));
  call.cancelled = [] { return cancel_requested.load(); };
  STASIS_ASSIGN(const auto stop, StopWhenReadable::Start(cancel_pipe[0]));
  call.stop = stop->token();
  call.emit = [&](const google::protobuf::MessageLite& event) {
    if (traits.operation) log.LogEvent(static_cast<const v1::OperationEvent&>(event));
    v1::WorkerFrame frame;
    frame.set_event(event.SerializeAsString());
    (void)frames.Write(frame);
  };
  if (!traits.operation) STASIS_TRY(ExitWithReader(STDOUT_FILENO));
  return CallMethod(call, request.method(), request.request());
}

Result<std::string> Work(Frames& frames) {
  STASIS_ASSIGN(v1::WorkerRequest request, ReadRequest());
  const auto traits = TraitsOf(request.method(), request.request());
  if (!traits) {
    return Fail(Code::kUnimplemented, "there is no method " + request.method().substr(0, 64));
  }
  if (!SetOperationId(request.operation())) {
    return Fail(Code::kInternal, "the daemon's request has no id");
  }
  WorkerLog::Open(request, VerbOf(request.method()),
                  traits->has_target ? TargetOf(request.request()) : "");
  const WorkerLog log(traits->operation);
  log.LogBegin();
  auto reply = Work(frames, request, *traits, log);
  log.LogEnd(reply);
  return reply;
}

int Main() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  // Catch SIGHUP instead of ignoring it, because child processes would inherit an ignored signal.
  ::signal(SIGHUP, [](int) {});
  struct sigaction action = {};
  if (::pipe2(cancel_pipe, O_CLOEXEC | O_NONBLOCK) != 0) cancel_pipe[0] = cancel_pipe[1] = -1;
  action.sa_handler = [](int) {
    const int before = errno;
    cancel_requested = true;
    if (cancel_pipe[1] >= 0) (void)!::write(cancel_pipe[1], "c", 1);
    errno = before;
  };
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGQUIT}) ::sigaction(signal, &action, nullptr);
  // The daemon starts workers with SIGINT blocked, so a cancellation that came before the handlers
  // were installed arrives now, before any work begins.
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  WidenDescriptorTable();
  Frames frames(STDOUT_FILENO);
  Result<std::string> reply = [&]() -> Result<std::string> {
    try {
      return Work(frames);
    } catch (const std::exception& error) {
      return Fail(Code::kInternal, std::string("internal error: ") + error.what(),
                  "`stasis recover` rolls back an unfinished operation");
    }
  }();
  v1::WorkerFrame last;
  if (reply) {
    last.set_reply(std::move(*reply));
  } else {
    *last.mutable_error() = EncodeError(reply.error());
  }
  // If the answer was too long, none of it was written. Write the error instead.
  if (Status written = frames.Write(last);
      !written && written.error().code == Code::kResourceExhausted) {
    *last.mutable_error() = EncodeError(written.error());
    (void)frames.Write(last);
  }
  FlushHelperOutput();
  return 0;
}

}  // namespace
}  // namespace stasis::api

int main() { return stasis::api::Main(); }
