#include "device/cuda/helper_client.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "base/fd.h"
#include "base/limit_hint.h"
#include "base/subprocess.h"
#include "base/thread.h"

namespace stasis::device::cuda {
namespace {

using wire::Reply;
using wire::Request;

// How long an idle helper may take to exit after its socket is closed. The kernel then closes the
// driver's files, which takes some tenths of a second with a GPU.
constexpr std::chrono::milliseconds kIdleEnd{3000};

tl::unexpected<CallFailure> Failure(CallFailure::Kind kind, Error error) {
  return tl::unexpected<CallFailure>({kind, std::move(error)});
}

// Waits on `condition` until `done()` is true or the deadline expires. Returns the last value of
// done().
template <class Done>
bool WaitFor(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
             const Deadline& deadline, Done done) {
  if (deadline.never()) {
    condition.wait(lock, done);
    return true;
  }
  return condition.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeout()), done);
}

}  // namespace

// One helper process from start to exit. Its own thread receives replies and finally reaps the
// process.
class HelperClient::Helper {
 public:
  Helper(Subprocess process, UniqueFd socket, std::chrono::milliseconds settle_timeout)
      : process_(std::move(process)), socket_(std::move(socket)), settle_timeout_(settle_timeout) {}

  // Call once, before any other method. After an error the process has exited.
  Status StartReceiver() {
    // Signals to the program must be handled by its own threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    auto receiver = Thread::Start([this] { Receive(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!receiver) {
      process_.Kill(SIGKILL);
      (void)process_.Wait(Deadline::In(settle_timeout_));
      return Fail(std::move(receiver).error());
    }
    receiver_ = std::move(*receiver);
    return {};
  }

  ~Helper() {
    // End-of-file stops an idle helper. One that does not exit is killed.
    ::shutdown(socket_.get(), SHUT_RDWR);
    receiver_.Join();
  }

  pid_t pid() const { return process_.pid(); }

  // Returns true if the helper accepts no new calls.
  bool unusable() {
    std::lock_guard lock(mutex_);
    return ended_ || retired_;
  }

  HelperClient::Answer Call(Request request, const Deadline& deadline, OnDeadline on_deadline) {
    std::unique_lock lock(mutex_);
    request.id = ++last_id_;
    waiting_.emplace(request.id, Waiter{request.op, std::nullopt});
    if (!ended_ &&
        ::send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      End("it could not be written to: " + ErrnoError(errno, "send").message);
    }
    const bool answered = WaitFor(changed_, lock, deadline, [&] {
      return waiting_.at(request.id).reply.has_value() || ended_;
    });
    std::optional<Reply> reply = std::move(waiting_.at(request.id).reply);
    waiting_.erase(request.id);
    if (reply) {
      if (retired_ && waiting_.empty()) End("it had not answered another call in time");
      return *reply;
    }
    if (answered) {
      WaitUntilGone(lock);
      return Failure(CallFailure::Kind::kLost, LostError());
    }
    if (on_deadline == OnDeadline::kRetire && !waiting_.empty()) {
      retired_ = true;
      return Failure(CallFailure::Kind::kDeadline, Error{Code::kDeadlineExceeded,
                                                         Domain::kStasis,
                                                         0,
                                                         "the driver did not answer in time",
                                                         {},
                                                         {},
                                                         false});
    }
    End("the driver did not come back in time from a call for process " +
        std::to_string(request.pid));
    WaitUntilGone(lock);
    return Failure(CallFailure::Kind::kDeadline,
                   Error{Code::kDeadlineExceeded,
                         Domain::kStasis,
                         0,
                         gone_ ? "the driver did not answer in time; its helper was ended"
                               : "the driver did not answer in time, and its helper (process " +
                                     std::to_string(pid()) + ") hangs in the kernel",
                         {},
                         {},
                         false});
  }

 private:
  // Kills the process; Receive() notices its exit. Requires mutex_.
  void End(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    ended_ = true;
    // By pidfd, because Receive() may have reaped the process and its pid may be reused.
    ::syscall(SYS_pidfd_send_signal, process_.pidfd(), SIGKILL, nullptr, 0);
    ::shutdown(socket_.get(), SHUT_RDWR);
    changed_.notify_all();
  }

  void WaitUntilGone(std::unique_lock<std::mutex>& lock) {
    changed_.wait_for(lock, settle_timeout_, [this] { return gone_; });
  }

  Error LostError() const {
    return Error{Code::kUnavailable,
                 Domain::kStasis,
                 0,
                 "the device helper " + (how_.empty() ? "ended" : how_) +
                     " while it worked on this" + (why_.empty() ? "" : ", because " + why_),
                 why_.empty() ? LikelyLimitHint() : "",
                 {},
                 false};
  }

  // Runs on the receiving thread.
  void Receive() {
    for (;;) {
      Reply reply;
      ssize_t size = TEMP_FAILURE_RETRY(::recv(socket_.get(), &reply, sizeof reply, MSG_TRUNC));
      if (size <= 0) break;
      const char* invalid = wire::WhyInvalid(reply, static_cast<size_t>(size));
      std::lock_guard lock(mutex_);
      auto waiter = waiting_.find(reply.id);
      // The late reply to an abandoned call on a retired helper.
      if (invalid == nullptr && waiter == waiting_.end() && retired_) continue;
      if (invalid == nullptr &&
          (waiter == waiting_.end() || waiter->second.reply || waiter->second.op != reply.op)) {
        invalid = "a reply that nobody asked for";
      }
      if (invalid != nullptr) {
        End(std::string("it sent ") + invalid);
        break;
      }
      waiter->second.reply = reply;
      changed_.notify_all();
    }
    // The helper exited, was killed by End(), or its socket was shut down.
    bool asked;
    {
      std::lock_guard lock(mutex_);
      asked = ended_;
      ended_ = true;
      changed_.notify_all();
    }
    auto status = process_.Wait(Deadline::In(kIdleEnd));
    if (!status) {
      ::syscall(SYS_pidfd_send_signal, process_.pidfd(), SIGKILL, nullptr, 0);
      status = process_.Wait(Deadline::In(settle_timeout_));
    }
    std::lock_guard lock(mutex_);
    gone_ = status.has_value();
    if (status && !asked) how_ = DescribeWaitStatus(*status);
    if (asked) how_ = "was ended";
    changed_.notify_all();
  }

  Subprocess process_;  // used by the receiving thread only, except pid and pidfd
  const UniqueFd socket_;
  const std::chrono::milliseconds settle_timeout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_id_ = 0;
  struct Waiter {
    wire::Op op;
    std::optional<Reply> reply;
  };
  std::map<uint64_t, Waiter> waiting_;
  bool retired_ = false;  // a driver call hangs that no caller waits for
  bool ended_ = false;    // no reply will come
  bool gone_ = false;     // reaped
  std::string why_;       // why it was killed
  std::string how_;       // how it exited

  Thread receiver_;
};

HelperClient::HelperClient(HelperOptions options) : options_(std::move(options)) {}
HelperClient::~HelperClient() = default;

pid_t HelperClient::helper_pid() {
  std::lock_guard lock(mutex_);
  return current_ == nullptr || current_->unusable() ? 0 : current_->pid();
}

Result<std::shared_ptr<HelperClient::Helper>> HelperClient::Start() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return FailErrno(errno, "socketpair");
  }
  UniqueFd ours(fds[0]), theirs(fds[1]);
  SpawnOptions spawn;
  spawn.argv = {options_.program, "--settle-ms", std::to_string(options_.settle_timeout.count())};
  if (!options_.library.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--library", options_.library});
  }
  spawn.env = ScrubbedEnvironment();
  // Makes the driver number the GPUs like nvidia-smi, instead of by speed.
  spawn.env->push_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  spawn.fds = {{wire::kSocketFd, theirs.get()}};
  if (options_.inherit_fd >= 0) spawn.fds[wire::kInheritedFd] = options_.inherit_fd;
  spawn.new_session = true;
  STASIS_ASSIGN(Subprocess process, Subprocess::Spawn(spawn));
  auto helper =
      std::make_shared<Helper>(std::move(process), std::move(ours), options_.settle_timeout);
  STASIS_TRY(helper->StartReceiver());
  return helper;
}

tl::expected<std::shared_ptr<HelperClient::Helper>, CallFailure> HelperClient::Get() {
  std::unique_lock lock(mutex_);
  started_.wait(lock, [this] { return !starting_; });
  if (current_ != nullptr && !current_->unusable()) return current_;
  starting_ = true;
  std::shared_ptr<Helper> old = std::exchange(current_, nullptr);
  lock.unlock();
  old.reset();  // waits for the exit if this was the last reference

  auto fresh = Start();
  std::optional<CallFailure> failure;
  if (!fresh) {
    failure = CallFailure{CallFailure::Kind::kNotStarted, fresh.error()};
  } else if (auto hello =
                 (*fresh)->Call(Request{}, Deadline::In(options_.start_timeout), OnDeadline::kKill);
             !hello) {
    failure = hello.error();
    failure->kind = CallFailure::Kind::kNotStarted;
  }
  lock.lock();
  starting_ = false;
  started_.notify_all();
  if (failure) {
    failure->error.WithContext("cannot start the device helper");
    return tl::unexpected<CallFailure>(std::move(*failure));
  }
  current_ = *fresh;
  return current_;
}

HelperClient::Answer HelperClient::Call(Request request, const Deadline& deadline,
                                        OnDeadline on_deadline) {
  auto helper = Get();
  if (!helper) return tl::unexpected<CallFailure>(std::move(helper.error()));
  if (deadline.passed()) {
    return Failure(CallFailure::Kind::kNotStarted,
                   Error{Code::kDeadlineExceeded,
                         Domain::kStasis,
                         0,
                         "the deadline had passed before the driver was asked",
                         {},
                         {},
                         false});
  }
  return (*helper)->Call(request, deadline, on_deadline);
}

HelperClient::Answer HelperClient::Hello() {
  return Call(Request{}, Deadline::In(options_.start_timeout), OnDeadline::kRetire);
}

}  // namespace stasis::device::cuda
