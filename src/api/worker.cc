#include "api/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <utility>

#include "api/error_message.h"
#include "api/frames.h"
#include "api/worker_log.h"
#include "base/file.h"
#include "base/install_layout.h"
#include "base/log.h"
#include "base/thread.h"

namespace stasis::api {

std::optional<uint64_t> Worker::descriptor_limit_;

namespace {

Result<UniqueFd> InMemory(const std::string& bytes) {
  UniqueFd fd(::memfd_create("request", MFD_CLOEXEC));
  if (!fd) return FailErrno(errno, "memfd_create");
  STASIS_TRY(WriteAll(fd.get(), bytes));
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) return FailErrno(errno, "lseek");
  return fd;
}

}  // namespace

Result<std::shared_ptr<Worker>> Worker::Start(const v1::WorkerRequest& request, OnEvent on_event,
                                              OnEnd on_end, int connection) {
  SpawnOptions spawn;
  STASIS_ASSIGN(std::string program, LibexecProgram("stasis-worker"));
  spawn.argv = {program};
  STASIS_ASSIGN(UniqueFd input, InMemory(request.SerializeAsString()));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd frames(ends[0]), output(ends[1]);
  spawn.fds = {{0, input.get()}, {1, output.get()}, {2, STDERR_FILENO}};
  if (log::Descriptor() >= 0) spawn.fds[kLogFd] = log::Descriptor();
  if (connection >= 0) spawn.fds[kConnectionFd] = connection;
  // A signal to the daemon's process group or terminal must not end an operation.
  spawn.new_session = true;
  // Block SIGINT until the worker has its handlers, so that an early cancellation is not lost.
  spawn.blocked_signals = {SIGINT};
  spawn.descriptor_limit = descriptor_limit_;
  // Start the thread before the worker, because no worker may run without the thread that reads its
  // answer.
  std::promise<std::shared_ptr<Worker>> started;
  auto listen = [started = started.get_future(), on_event = std::move(on_event),
                 on_end = std::move(on_end)]() mutable {
    const std::shared_ptr<Worker> worker = started.get();
    if (worker == nullptr) return;
    Answer answer = worker->Listen(on_event);
    on_end(std::move(answer.reply), answer.lost);
  };
  STASIS_ASSIGN(Thread thread, Thread::Start(std::move(listen)));
  auto process = Subprocess::Spawn(spawn);
  if (!process) {
    started.set_value(nullptr);
    return Fail(std::move(process).error());
  }
  output.Reset();
  std::shared_ptr<Worker> worker(new Worker(std::move(*process), std::move(frames)));
  started.set_value(worker);
  std::move(thread).Detach();
  return worker;
}

Worker::Answer Worker::Listen(const OnEvent& on_event) {
  std::optional<Result<std::string>> last;
  Error broken{Code::kInternal};
  while (!last) {
    auto bytes = ReadFrame(frames_.get());
    if (!bytes || !*bytes) {
      if (!bytes) broken = std::move(bytes).error();
      break;
    }
    v1::WorkerFrame frame;
    if (!frame.ParseFromString(**bytes)) {
      broken.message = "the worker sent an invalid frame";
      break;
    }
    switch (frame.frame_case()) {
      case v1::WorkerFrame::kEvent:
        on_event(std::move(*frame.mutable_event()));
        break;
      case v1::WorkerFrame::kReply:
        last = std::move(*frame.mutable_reply());
        break;
      case v1::WorkerFrame::kError:
        last = Fail(DecodeError(frame.error()));
        break;
      case v1::WorkerFrame::FRAME_NOT_SET:
        break;
    }
  }
  // Wait without the lock, because the wait may take as long as the work.
  pollfd end{process_.pidfd(), POLLIN, 0};
  (void)TEMP_FAILURE_RETRY(::poll(&end, 1, -1));
  std::lock_guard lock(mutex_);
  auto status = process_.Wait();
  ended_ = true;
  if (last) return {std::move(*last), false};
  if (broken.message.empty()) {
    broken.message =
        "the worker " + (status ? DescribeWaitStatus(*status) : status.error().ToString());
  }
  return {Fail(std::move(broken)), true};
}

void Worker::Signal(int signal) {
  std::lock_guard lock(mutex_);
  if (!ended_) process_.Kill(signal);
}

void Worker::Cancel() { Signal(SIGINT); }

void Worker::Abandon() { Signal(SIGKILL); }

}  // namespace stasis::api
