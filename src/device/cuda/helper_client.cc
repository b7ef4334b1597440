#include "device/cuda/helper_client.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "base/fd.h"
#include "base/limit_hint.h"
#include "base/thread.h"
#include "device/cuda/cuda_error.h"
#include "device/driver_environment.h"
#include "ipc/resident.h"
#include "ipc/socket.h"

namespace stasis::device::cuda {
namespace {

using wire::Op;
using wire::Reply;
using wire::Request;

constexpr char kNamePrefix[] = "device-";  // of resident helpers
// The id of the first request, which Greet() sends.
constexpr uint64_t kGreetingId = 1;
// How long an idle helper may take to exit after its socket is closed. The kernel then closes the
// driver's files, which takes some tenths of a second with a GPU.
constexpr std::chrono::milliseconds kIdleEnd{3000};
// How long an idle resident helper may take to end a session.
constexpr std::chrono::milliseconds kSessionEnd{5000};

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

Error DeadlineError(std::string message) {
  return Error{Code::kDeadlineExceeded, Domain::kStasis, 0, std::move(message), {}, {}, false};
}

std::string Bytes(const Request& request) {
  return {reinterpret_cast<const char*>(&request), sizeof request};
}

Request Make(Op op, uint64_t id) {
  Request request;
  request.op = op;
  request.id = id;
  return request;
}

// The first request to a helper. The lock is sent later: a hung helper would keep it.
Result<ipc::Greeting> Greet(ipc::HelperProcess& helper, const Deadline& deadline) {
  const Request hello = Make(Op::kHello, kGreetingId);
  if (ipc::SendPacket(helper.socket(), &hello, sizeof hello, {}, MSG_DONTWAIT) &&
      !ipc::AwaitReadable(helper.socket(), deadline)) {
    return ipc::Greeting::kSilent;
  }
  Reply reply;
  auto packet = ipc::ReceivePacket(helper.socket(), &reply, sizeof reply);
  if (!packet || packet->size == 0) return ipc::Greeting::kBusy;
  return wire::WhyInvalid(reply, packet->size) != nullptr ? ipc::Greeting::kBroken
                                                          : ipc::Greeting::kServes;
}

}  // namespace

// One helper process from its first answer until its exit or, if it is resident, until the end of
// the session. Its own thread receives replies and finally reaps the process.
class HelperClient::Helper {
 public:
  Helper(ipc::HelperProcess process, std::chrono::milliseconds settle_timeout)
      : process_(std::move(process)), settle_timeout_(settle_timeout) {}

  // Call once, before any other method. After an error the process has exited.
  Status StartReceiver() {
    // Signals to the program must be handled by its own threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    auto receiver = Thread::Start([this] { Receive(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!receiver) {
      process_.Kill();
      (void)process_.WaitEnd(Deadline::In(settle_timeout_));
      return Fail(std::move(receiver).error());
    }
    receiver_ = std::move(*receiver);
    return {};
  }

  ~Helper() {
    if (process_.resident() && !unusable()) EndSession();
    // End-of-file stops an idle helper. One that does not exit is killed.
    ::shutdown(process_.socket(), SHUT_RDWR);
    receiver_.Join();
  }

  pid_t pid() const { return process_.pid(); }
  bool found() const { return process_.found(); }

  // Hands the lock of this client over (-1: none) and returns when the helper holds it.
  Status PassLock(int lock_fd, const Deadline& deadline) {
    auto reply = Call(Request{}, deadline, OnDeadline::kKill, lock_fd);
    if (!reply) return Fail(std::move(reply.error().error));
    if (reply->outcome == wire::Outcome::kBadRequest && lock_fd >= 0) {
      return Fail(Code::kUnavailable, std::string("it was sent ") + reply->cu_text);
    }
    return {};
  }

  // Accepts no new calls from now on. The process is ended after the calls in progress have
  // returned.
  void Retire() {
    std::lock_guard lock(mutex_);
    retired_ = true;
  }

  // Returns true if the helper accepts no new calls.
  bool unusable() {
    std::lock_guard lock(mutex_);
    return ended_ || retired_;
  }

  HelperClient::Answer Call(Request request, const Deadline& deadline, OnDeadline on_deadline,
                            int lock_fd = -1) {
    std::unique_lock lock(mutex_);
    request.id = ++last_id_;
    waiting_.emplace(request.id, Waiter{request.op, std::nullopt});
    if (!ended_) {
      auto sent = ipc::SendPacket(process_.socket(), &request, sizeof request,
                                  {&lock_fd, lock_fd >= 0 ? 1u : 0u}, MSG_DONTWAIT);
      if (!sent) End("writing to it failed: " + sent.error().message);
    }
    const bool answered = WaitFor(changed_, lock, deadline, [&] {
      return waiting_.at(request.id).reply.has_value() || ended_;
    });
    std::optional<Reply> reply = waiting_.at(request.id).reply;
    waiting_.erase(request.id);
    if (reply) {
      if (retired_ && waiting_.empty()) End("it did not answer an earlier call in time");
      return *reply;
    }
    if (answered) {
      WaitUntilGone(lock);
      return Failure(CallFailure::Kind::kLost, LostError());
    }
    if (on_deadline == OnDeadline::kRetire && !waiting_.empty()) {
      retired_ = true;
      return Failure(CallFailure::Kind::kDeadline,
                     DeadlineError("the driver did not answer in time"));
    }
    End("the driver did not return in time from a call for process " + std::to_string(request.pid));
    WaitUntilGone(lock);
    return Failure(
        CallFailure::Kind::kDeadline,
        DeadlineError(gone_ ? "the driver did not answer in time; its helper was killed"
                            : "the driver did not answer in time, and its helper (process " +
                                  std::to_string(pid()) + ") hangs in the kernel"));
  }

 private:
  // Kills the process; Receive() notices its exit. Requires mutex_.
  void End(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    ended_ = true;
    process_.Kill();
    ::shutdown(process_.socket(), SHUT_RDWR);
    changed_.notify_all();
  }

  // The helper releases the lock before it answers. A helper that refuses still executes driver
  // calls of this client, so it is killed.
  void EndSession() {
    (void)Call(Make(Op::kEnd, 0), Deadline::In(kSessionEnd), OnDeadline::kKill);
    std::lock_guard lock(mutex_);
    if (!left_ && !ended_) End("it did not end its session");
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
      // A resident helper's socket does not block.
      (void)ipc::AwaitReadable(process_.socket(), {});
      auto packet = ipc::ReceivePacket(process_.socket(), &reply, sizeof reply);
      if (!packet || packet->size == 0) break;
      const char* invalid = wire::WhyInvalid(reply, packet->size);
      std::lock_guard lock(mutex_);
      auto waiter = waiting_.find(reply.id);
      // Ignore a late reply of a retired helper: its call was abandoned.
      if (invalid == nullptr && waiter == waiting_.end() && retired_) continue;
      if (invalid == nullptr &&
          (waiter == waiting_.end() || waiter->second.reply || waiter->second.op != reply.op)) {
        invalid = "a reply that matches no request";
      }
      if (invalid != nullptr) {
        End(std::string("it sent ") + invalid);
        break;
      }
      waiter->second.reply = reply;
      // Record the end of the session now, because end-of-file follows and must not look like a
      // crash.
      left_ |= reply.op == Op::kEnd && reply.outcome == wire::Outcome::kDone;
      changed_.notify_all();
    }
    // The helper exited, was killed by End(), or its socket was shut down.
    bool asked;
    {
      std::lock_guard lock(mutex_);
      asked = ended_;
      ended_ = true;
      changed_.notify_all();
      if (left_) return;
    }
    auto how = process_.WaitEnd(Deadline::In(kIdleEnd));
    if (!how) {
      process_.Kill();
      how = process_.WaitEnd(Deadline::In(settle_timeout_));
    }
    std::lock_guard lock(mutex_);
    gone_ = how.has_value();
    if (how && !asked) how_ = *how;
    if (asked) how_ = "was ended";
    changed_.notify_all();
  }

  ipc::HelperProcess process_;  // WaitEnd() is called on the receiving thread only
  const std::chrono::milliseconds settle_timeout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_id_ = kGreetingId;
  struct Waiter {
    wire::Op op;
    std::optional<Reply> reply;
  };
  std::map<uint64_t, Waiter> waiting_;
  bool retired_ = false;  // a driver call hangs that no caller waits for
  bool ended_ = false;    // no reply will come
  bool left_ = false;     // resident: the session has ended, and the process keeps running
  bool gone_ = false;     // reaped
  std::string why_;       // why it was killed
  std::string how_;       // how it exited

  Thread receiver_;
};

Result<int> DismissHelpers(const std::string& dir, const Deadline& deadline) {
  return ipc::DismissAll(dir, kNamePrefix, Bytes(Make(Op::kLeave, 1)), deadline);
}

HelperClient::HelperClient(HelperOptions options) : options_(std::move(options)) {}
HelperClient::~HelperClient() = default;

pid_t HelperClient::helper_pid() {
  std::lock_guard lock(mutex_);
  return current_ == nullptr || current_->unusable() ? 0 : current_->pid();
}

Result<ipc::HelperProcess> HelperClient::OpenProcess() {
  ipc::HelperCommand command;
  command.program = options_.program;
  command.arguments = {"--settle-ms", std::to_string(options_.settle_timeout.count())};
  auto add = [&](const char* option, const std::string& value) {
    command.arguments.insert(command.arguments.end(), {option, value});
  };
  if (!options_.library.empty()) add("--library", options_.library);
  command.environment = DriverEnvironment();
  command.lock_fd = options_.inherit_fd;
  const Deadline deadline = Deadline::In(options_.start_timeout);
  if (!options_.resident_dir.empty() && options_.idle_timeout.count() > 0) {
    auto path = ipc::ResidentPath(options_.resident_dir,
                                  kNamePrefix + DriverIdentity(options_.library), options_.program);
    if (path) {
      ipc::HelperCommand resident = command;
      resident.arguments.insert(
          resident.arguments.end(),
          {"--listen-as", *path, "--idle-ms", std::to_string(options_.idle_timeout.count())});
      const ipc::ResidentOptions options{*path, Bytes(Make(Op::kLeave, 1)),
                                         options_.settle_timeout};
      STASIS_ASSIGN(auto helper, ipc::OpenResident(resident, options, Greet, deadline));
      if (helper) return std::move(*helper);
    }
  }
  STASIS_ASSIGN(ipc::HelperProcess helper, ipc::HelperProcess::Start(command));
  return helper;
}

// Returns a helper that has answered and holds the lock.
Result<std::shared_ptr<HelperClient::Helper>> HelperClient::Start() {
  STASIS_ASSIGN(ipc::HelperProcess process, OpenProcess());
  const int lock = process.resident() ? options_.inherit_fd : -1;
  auto helper = std::make_shared<Helper>(std::move(process), options_.settle_timeout);
  STASIS_TRY(helper->StartReceiver());
  STASIS_TRY(helper->PassLock(lock, Deadline::In(options_.start_timeout)));
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
  lock.lock();
  starting_ = false;
  started_.notify_all();
  if (!fresh) {
    return Failure(CallFailure::Kind::kNotStarted,
                   std::move(fresh.error().WithContext("cannot start the device helper")));
  }
  current_ = std::move(*fresh);
  return current_;
}

HelperClient::Answer HelperClient::Call(Request request, const Deadline& deadline,
                                        OnDeadline on_deadline) {
  for (bool again = false;; again = true) {
    auto helper = Get();
    if (!helper) return tl::unexpected<CallFailure>(std::move(helper.error()));
    if (deadline.passed()) {
      return Failure(CallFailure::Kind::kNotStarted,
                     DeadlineError("the deadline had passed before the driver was asked"));
    }
    auto answer = (*helper)->Call(request, deadline, on_deadline);
    // The helper of an earlier command may have lost its connection to a GPU. If the call has no
    // side effects, repeat it with a new helper.
    const bool repeat = !again && on_deadline == OnDeadline::kRetire && (*helper)->found() &&
                        answer && MayLast(answer->cu_result);
    if (!repeat) return answer;
    (*helper)->Retire();
  }
}

HelperClient::Answer HelperClient::Hello() {
  return Call(Request{}, Deadline::In(options_.start_timeout), OnDeadline::kRetire);
}

}  // namespace stasis::device::cuda
