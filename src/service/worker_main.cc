// stasis-worker: does the work of one call of the daemon, with the rights of who called, and ends.
// The daemon may end before it: an operation then goes on, and everything else ends too.
//
//   0  the WorkerRequest (a file)      1  frames with WorkerFrame
//   2  for what helpers may say        3  the daemon's log
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>

#include "base/descriptor_table.h"
#include "base/file.h"
#include "base/operation_id.h"
#include "service/convert.h"
#include "service/frames.h"
#include "service/helper_words.h"
#include "service/methods.h"
#include "service/worker_log.h"
#include "service/worker_rights.h"

namespace stasis::service {
namespace {

std::atomic<bool> cancel_asked{false};

class Frames {
 public:
  explicit Frames(int fd) : fd_(fd) {}
  // A daemon that has gone away is no failure of the work.
  void Write(const v1::WorkerFrame& frame) {
    std::lock_guard lock(mutex_);
    (void)WriteFrame(fd_, frame.SerializeAsString());
  }

 private:
  int fd_;
  std::mutex mutex_;
};

// Ends this process when nobody waits for its answer any more.
void EndWithReader(int fd) {
  std::thread([fd] {
    pollfd reader{fd, 0, 0};
    while (::poll(&reader, 1, -1) < 0 && errno == EINTR) {
    }
    ::_exit(0);
  }).detach();
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
  if (traits.operation && cancel_asked) {
    const std::string target = traits.has_target ? " " + TargetOf(request.request()) : "";
    return Fail(Error{.code = Code::kCancelled,
                      .message = "cancelled before it had begun",
                      .hint = "Everything is as it was before",
                      .context = {"cannot " + VerbOf(request.method()) + target}});
  }
  STASIS_TRY(TakeRights(request));
  STASIS_TRY(ListenToHelpers());
  STASIS_ASSIGN(Call call, CallOf(request));
  call.cancelled = [] { return cancel_asked.load(); };
  call.emit = [&](const google::protobuf::MessageLite& event) {
    if (traits.operation) log.Event(static_cast<const v1::OperationEvent&>(event));
    v1::WorkerFrame frame;
    frame.set_event(event.SerializeAsString());
    frames.Write(frame);
  };
  if (!traits.operation) EndWithReader(STDOUT_FILENO);
  return Perform(call, request.method(), request.request());
}

Result<std::string> Work(Frames& frames) {
  STASIS_ASSIGN(v1::WorkerRequest request, ReadRequest());
  const MethodTraits* traits = FindMethod(request.method());
  if (traits == nullptr) {
    return Fail(Code::kUnimplemented, "there is no method " + request.method().substr(0, 64));
  }
  if (!SetOperationId(request.operation())) {
    return Fail(Code::kInternal, "the daemon's request has no id");
  }
  WorkerLog::Open(request, VerbOf(request.method()),
                  traits->has_target ? TargetOf(request.request()) : "");
  const WorkerLog log(traits->operation);
  log.Began();
  auto reply = Work(frames, request, *traits, log);
  log.Ended(reply);
  return reply;
}

int Main() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  // Not ignored: what is started here would inherit that.
  ::signal(SIGHUP, [](int) {});
  struct sigaction action = {};
  action.sa_handler = [](int) { cancel_asked = true; };
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGQUIT}) ::sigaction(signal, &action, nullptr);
  // The daemon has started us with SIGINT blocked: who cancelled before we could hear it is heard
  // now, before anything is begun.
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  WidenDescriptorTable();
  Frames frames(STDOUT_FILENO);
  Result<std::string> reply = [&]() -> Result<std::string> {
    try {
      return Work(frames);
    } catch (const std::exception& error) {
      return Fail(Code::kInternal, std::string("an error of ours: ") + error.what(),
                  "`stasis recover` undoes what may be left half-way");
    }
  }();
  v1::WorkerFrame last;
  if (reply) {
    last.set_reply(std::move(*reply));
  } else {
    *last.mutable_error() = ToMessage(reply.error());
  }
  frames.Write(last);
  HearHelpersOut();
  return 0;
}

}  // namespace
}  // namespace stasis::service

int main() { return stasis::service::Main(); }
