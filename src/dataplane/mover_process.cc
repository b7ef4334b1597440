#include "dataplane/mover_process.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <memory>

#include "base/limit_hint.h"
#include "device/driver_environment.h"
#include "ipc/socket.h"

namespace stasis::dataplane {

using wire::Make;
using wire::Op;
using wire::Reply;
using wire::Request;

namespace {

constexpr char kNamePrefix[] = "mover-";
// Time limit for an idle mover to exit; the kernel then closes the driver's files.
constexpr std::chrono::milliseconds kIdleEnd{3000};

// A resource limit of this command is the likely reason if a mover cannot start or dies.
template <class T>
Result<T> WithLimitHint(Result<T> result) {
  if (!result && result.error().hint.empty()) result.error().hint = LikelyLimitHint();
  return result;
}

// A request that makes a mover release everything that it holds for this client and exit.
std::string LeaveRequest() {
  Request request = Make(Op::kEnd);
  request.id = 1;
  request.flags = wire::kFlagLeave;
  return {reinterpret_cast<const char*>(&request), sizeof request};
}

ipc::HelperCommand CommandOf(const MoverOptions& options) {
  ipc::HelperCommand command;
  command.program = options.program;
  command.arguments = {"--gpu", options.gpu.value};
  auto add = [&](const char* option, const std::string& value) {
    command.arguments.insert(command.arguments.end(), {option, value});
  };
  if (!options.library.empty()) add("--library", options.library);
  command.environment = device::DriverEnvironment();
  command.lock_fd = options.inherit_fd;
  return command;
}

}  // namespace

Status MoverProcess::Stop() {
  if (!helper_) return {};
  if (helper_->resident() && connected()) return EndSession();
  helper_->Disconnect();
  const pid_t id = pid();
  if (!helper_->WaitEnd(Deadline::In(kIdleEnd))) {
    Kill();
    if (helper_) {
      helper_.reset();
      return Fail(Code::kInternal, fmt::format("the mover (process {}) hangs in the kernel", id));
    }
  }
  helper_.reset();
  return {};
}

// The mover releases everything that it holds for this client before it answers, so the next client
// finds no lock held.
Status MoverProcess::EndSession() {
  auto ended = Call(Make(Op::kEnd), {}, Deadline::In(kReleaseLimit));
  // A mover that is busy or in an unknown state must not continue with this client's memory.
  if (!ended) Kill();
  helper_.reset();
  return {};
}

std::string MoverProcess::Kill() {
  if (!helper_) return "had ended";
  helper_->Disconnect();
  helper_->Kill();
  const auto how = helper_->WaitEnd(Deadline::In(options_.settle_timeout));
  if (!how) return fmt::format("hangs in the kernel (process {})", pid());
  helper_.reset();
  return *how;
}

Status MoverProcess::Connect(const Deadline& deadline) {
  // A mover that blocks in the kernel still holds GPU memory, so no other is started beside it.
  if (helper_ && !helper_->WaitEnd(Deadline::In(std::chrono::milliseconds(0)))) {
    return Fail(Code::kUnavailable,
                fmt::format("the last mover (process {}) still hangs in the kernel", pid()));
  }
  helper_.reset();
  if (!options_.resident_dir.empty() && options_.idle_timeout.count() > 0) {
    STASIS_ASSIGN(const bool found, ConnectToResident(deadline));
    if (found) return {};
  }
  auto started = Annotate(ipc::HelperProcess::Start(CommandOf(options_)),
                          "start the mover of " + options_.gpu.value);
  if (!started) return Fail(std::move(started.error()));
  helper_ = std::move(*started);
  return {};
}

// Returns false if no resident mover is available.
Result<bool> MoverProcess::ConnectToResident(const Deadline& deadline) {
  auto path =
      ipc::ResidentPath(options_.resident_dir, kNamePrefix + options_.gpu.value, options_.program);
  if (!path) return false;
  ipc::HelperCommand command = CommandOf(options_);
  command.arguments.insert(
      command.arguments.end(),
      {"--listen-as", *path, "--idle-ms", std::to_string(options_.idle_timeout.count())});
  STASIS_ASSIGN(helper_, Annotate(ipc::OpenResident(
                                      command, {*path, LeaveRequest(), options_.settle_timeout},
                                      [this](ipc::HelperProcess& helper, const Deadline& answer) {
                                        return Greet(helper, answer);
                                      },
                                      deadline),
                                  "the mover of " + options_.gpu.value));
  if (!helper_) return false;
  // Pass the lock only now that the mover has answered: a hung mover would keep it even after this
  // process is killed.
  const int lock = options_.inherit_fd;
  if (lock < 0) return true;
  auto passed = Call(Make(Op::kHello), {&lock, 1}, deadline);
  if (passed) return true;
  // Without the lock the mover must not work for this client.
  if (connected()) (void)EndSession();
  return Fail(std::move(passed.error()));
}

Result<ipc::Greeting> MoverProcess::Greet(ipc::HelperProcess& helper, const Deadline& deadline) {
  Request hello = Make(Op::kHello);
  hello.id = ++last_id_;
  if (ipc::SendPacket(helper.socket(), &hello, sizeof hello, {}, MSG_DONTWAIT) &&
      !ipc::AwaitReadable(helper.socket(), deadline)) {
    return ipc::Greeting::kSilent;
  }
  Reply reply;
  auto packet = ipc::ReceivePacket(helper.socket(), &reply, sizeof reply);
  if (!packet || packet->size == 0) return ipc::Greeting::kBusy;
  if (wire::WhyInvalid(reply, packet->size, packet->fds.size()) != nullptr || reply.fatal != 0) {
    return ipc::Greeting::kBroken;
  }
  STASIS_TRY(wire::ErrorOf(reply));
  return ipc::Greeting::kServes;
}

Status MoverProcess::AwaitReply(Op op, const StopEvent* stop, const Deadline& deadline) {
  pollfd waits[] = {{helper_->socket(), POLLIN, 0}, {stop != nullptr ? stop->fd() : -1, POLLIN, 0}};
  const int ready = TEMP_FAILURE_RETRY(::poll(waits, 2, deadline.PollTimeout()));
  if (ready > 0 && waits[0].revents != 0) return {};
  const std::string how = Kill();
  if (ready > 0) return Fail(Code::kCancelled, "cancelled");
  return Fail(Code::kDeadlineExceeded,
              fmt::format("the mover of {} did not {} in time and {}", options_.gpu.value,
                          wire::OpName(op), helper_ ? how : "was killed"));
}

Result<Reply> MoverProcess::Call(Request request, std::span<const int> fds,
                                 const Deadline& deadline, const Progress& progress,
                                 std::vector<UniqueFd>* out, const std::stop_token& stop) {
  auto lost = [&](std::string why) {
    const bool broken = !why.empty();
    const std::string how = Kill();
    return Fail(Code::kUnavailable,
                fmt::format("could not {}: the mover of {} {}", wire::OpName(request.op),
                            options_.gpu.value, broken ? "sent " + why : how),
                broken ? "" : LikelyLimitHint());
  };
  if (!connected()) {
    return Fail(Code::kUnavailable, "no mover is running for " + options_.gpu.value);
  }
  const int socket = helper_->socket();
  std::unique_ptr<StopEvent> stopped;
  if (stop.stop_possible()) {
    STASIS_ASSIGN(stopped, StopEvent::Make(stop));
  }
  request.id = ++last_id_;
  if (auto sent = ipc::SendPacket(socket, &request, sizeof request, fds, MSG_DONTWAIT); !sent) {
    // Too many descriptors of this user are in flight; the mover itself is fine.
    if (sent.error().raw == ETOOMANYREFS || sent.error().raw == EBADF) {
      return Fail(std::move(sent.error()));
    }
    return lost({});
  }
  for (;;) {
    STASIS_TRY(AwaitReply(request.op, stopped.get(), deadline));
    Reply reply;
    auto packet = ipc::ReceivePacket(socket, &reply, sizeof reply);
    if (!packet || packet->size == 0) return lost({});
    if (packet->fds_lost) {
      (void)lost({});
      return Fail(Code::kResourceExhausted,
                  "this process cannot open as many descriptors as the mover sent",
                  "raise the limit of open files (ulimit -n)");
    }
    const char* invalid = wire::WhyInvalid(reply, packet->size, packet->fds.size());
    if (invalid == nullptr && (reply.id != request.id || reply.op != request.op)) {
      invalid = "a reply that matches no request";
    }
    if (invalid != nullptr) return lost(invalid);
    if (reply.progress != 0) {
      if (progress) progress(reply.bytes);
      continue;
    }
    if (reply.fatal != 0) Kill();
    if (auto status = wire::ErrorOf(reply); !status) return Fail(std::move(status.error()));
    if (out != nullptr) {
      for (UniqueFd& fd : packet->fds) out->push_back(std::move(fd));
    }
    return reply;
  }
}

Result<Reply> MoverProcess::CallOrStart(const Request& request, std::span<const int> fds,
                                        const Deadline& deadline) {
  const bool fresh = !connected();
  if (fresh) {
    Status connected = Connect(deadline);
    if (!connected) return WithLimitHint(Result<Reply>(Fail(std::move(connected.error()))));
  }
  auto reply = WithLimitHint(Call(request, fds, deadline));
  // The mover may have died since the last request; no work is lost then.
  if (!reply && reply.error().code == Code::kUnavailable && !fresh && !connected()) {
    STASIS_TRY(Connect(deadline));
    reply = Call(request, fds, deadline);
  }
  return reply;
}

Result<int> DismissMovers(const std::string& dir, const Deadline& deadline) {
  return ipc::DismissAll(dir, kNamePrefix, LeaveRequest(), deadline);
}

}  // namespace stasis::dataplane
