#include "dataplane/mover_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "base/limit_hint.h"
#include "dataplane/packet.h"
#include "dataplane/resident_mover.h"
#include "process/inheritance.h"

namespace stasis::dataplane {

using wire::Make;
using wire::Op;
using wire::Reply;
using wire::Request;

namespace {

// Time limit for an idle mover to exit; the kernel then closes the driver's files.
constexpr std::chrono::milliseconds kIdleEnd{3000};

// A resource limit of this command is the likely reason if a mover cannot start or dies.
template <class T>
Result<T> WithLimitHint(Result<T> result) {
  if (!result && result.error().hint.empty()) result.error().hint = LikelyLimitHint();
  return result;
}
}  // namespace

void MoverProcess::Forget() {
  child_.reset();
  pidfd_.Reset();
  pid_ = 0;
  resident_ = false;
}

bool MoverProcess::WaitEnd(const Deadline& deadline, std::string* how) {
  if (child_) {
    auto status = child_->Wait(deadline);
    if (!status) return false;
    if (how != nullptr) *how = DescribeWaitStatus(*status);
  } else {
    pollfd p{pidfd_.get(), POLLIN, 0};
    if (TEMP_FAILURE_RETRY(::poll(&p, 1, deadline.PollTimeout())) <= 0) return false;
    if (how != nullptr) *how = "has ended";
  }
  Forget();
  return true;
}

Status MoverProcess::Stop() {
  if (!running()) return {};
  if (resident_) return Farewell();
  socket_.Reset();
  const pid_t id = pid();
  if (WaitEnd(Deadline::In(kIdleEnd))) return {};
  End();
  const bool hangs = running();
  Forget();
  if (!hangs) return {};
  return Fail(Code::kInternal, fmt::format("the mover (process {}) hangs in the kernel", id));
}

// The mover releases everything of this client before it answers, so the next client finds no lock
// held.
Status MoverProcess::Farewell() {
  auto ended = Call(Make(Op::kEnd), {}, Deadline::In(kReleaseLimit));
  socket_.Reset();
  if (!ended) {
    // Busy, or in an unknown state: it must not continue with this client's memory.
    End();
    return {};
  }
  Forget();
  return {};
}

std::string MoverProcess::End() {
  socket_.Reset();
  if (!running()) return "had ended";
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  std::string how;
  const pid_t id = pid();
  if (!WaitEnd(Deadline::In(options_.settle_timeout), &how)) {
    return fmt::format("(process {}) hangs in the kernel", id);
  }
  return how;
}

Status MoverProcess::Connect(const Deadline& deadline) {
  // A mover that blocks in the kernel still holds GPU memory, so no other is started beside it.
  if (running() && !WaitEnd(Deadline::In(std::chrono::milliseconds(0)))) {
    return Fail(Code::kUnavailable,
                fmt::format("the last mover (process {}) still hangs in the kernel", pid()));
  }
  if (!options_.resident_dir.empty() && options_.idle_timeout.count() > 0) {
    STASIS_ASSIGN(const bool found, ConnectToResident(deadline));
    if (found) return {};
  }
  return Spawn({}, -1);
}

Result<bool> MoverProcess::ConnectToResident(const Deadline& deadline) {
  auto path = ResidentPath(options_.resident_dir, options_.gpu, options_.program);
  if (!path) return false;
  // A resident mover may exit during the attempt, hang, or need to be replaced.
  for (int tries = 0; tries < 3; ++tries) {
    std::optional<ResidentName> name;
    Deadline answer = deadline;
    auto client = ConnectResident(*path);
    if (client && !process::InheritanceDifference({client->pid}).empty()) {
      // It has the limits and control group of the command that started it, which differ from this
      // one's.
      STASIS_ASSIGN(const bool left, SendAway(*client, deadline));
      if (!left) return false;  // it serves another command
      continue;
    }
    if (client) {
      socket_ = std::move(client->socket);
      pidfd_ = std::move(client->pidfd);
      pid_ = client->pid;
      answer = Deadline::Sooner(deadline, Deadline::In(kResidentAnswer));
    } else if (client.error().code == Code::kNotFound) {
      auto claimed = ClaimResidentName(*path);
      if (!claimed && claimed.error().code == Code::kDeadlineExceeded) return false;
      if (!claimed) continue;
      name = std::move(*claimed);
      STASIS_TRY(Spawn(*path, name->socket.get()));
    } else {
      continue;
    }
    resident_ = true;
    Request hello = Make(Op::kHello);
    hello.id = ++last_id_;
    const bool asked =
        SendPacket(socket_.get(), &hello, sizeof hello, {}, MSG_DONTWAIT).has_value();
    pollfd p{socket_.get(), POLLIN, 0};
    const bool heard = asked && TEMP_FAILURE_RETRY(::poll(&p, 1, answer.PollTimeout())) > 0;
    if (asked && !heard) {
      const std::string how = End();
      if (client && !running() && !deadline.passed()) continue;
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("the mover of {} did not answer in time, and {}", options_.gpu.value,
                              running() ? how : "was ended"));
    }
    Reply reply;
    auto packet = ReceivePacket(socket_.get(), &reply, sizeof reply);
    if (packet && packet->size != 0) {
      if (wire::WhyInvalid(reply, packet->size, packet->fds.size()) != nullptr) reply.fatal = 1;
      if (reply.fatal != 0) End();
      // Its context was broken since; a new mover gets a new context.
      if (client && !running()) continue;
      STASIS_TRY(wire::ErrorOf(reply));
      if (!running()) return false;
      // Pass the lock only now: a hung mover would keep it even after this process is killed.
      const int lock = options_.inherit_fd;
      if (lock >= 0) STASIS_TRY(Call(Make(Op::kHello), {&lock, 1}, deadline));
      return true;
    }
    // It serves another client or has just exited; do not wait for it.
    socket_.Reset();
    Forget();
  }
  return false;
}

Status MoverProcess::Spawn(const std::string& listen_path, int listen_fd) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return FailErrno(errno, "socketpair");
  }
  UniqueFd ours(fds[0]), theirs(fds[1]);
  SpawnOptions spawn;
  spawn.argv = {options_.program, "--gpu", options_.gpu.value};
  if (!options_.library.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--library", options_.library});
  }
  if (options_.idle_timeout.count() > 0) {
    spawn.argv.insert(spawn.argv.end(),
                      {"--idle-ms", std::to_string(options_.idle_timeout.count())});
  }
  spawn.env = ScrubbedEnvironment();
  spawn.env->push_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  spawn.fds = {{wire::kSocketFd, theirs.get()}};
  UniqueFd null;
  if (listen_fd >= 0) {
    spawn.argv.insert(spawn.argv.end(), {"--listen-as", listen_path});
    spawn.fds[wire::kListenFd] = listen_fd;
    // A resident mover must not depend on the terminal or directory of the command that starts it.
    STASIS_ASSIGN(null, Open("/dev/null", O_WRONLY));
    spawn.fds[STDERR_FILENO] = null.get();
    spawn.working_directory = "/";
  } else if (options_.inherit_fd >= 0) {
    spawn.fds[wire::kInheritedFd] = options_.inherit_fd;
  }
  spawn.new_session = true;
  auto process = Annotate(Subprocess::Spawn(spawn), "start the mover of " + options_.gpu.value);
  if (!process) return Fail(std::move(process.error()));
  pidfd_.Reset(::fcntl(process->pidfd(), F_DUPFD_CLOEXEC, 0));
  if (!pidfd_) return FailErrno(errno, "duplicate a descriptor");
  pid_ = process->pid();
  child_ = std::move(*process);
  socket_ = std::move(ours);
  return {};
}

Result<Reply> MoverProcess::Call(Request request, std::span<const int> fds,
                                 const Deadline& deadline, const Progress& progress,
                                 std::vector<UniqueFd>* out) {
  auto lost = [&](std::string why) {
    const bool broken = !why.empty();
    const std::string how = End();
    return Fail(Code::kUnavailable,
                fmt::format("the mover of {} {} when it was to {}", options_.gpu.value,
                            broken ? "sent " + why : how, wire::OpName(request.op)),
                broken ? "" : LikelyLimitHint());
  };
  if (!socket_) {
    return Fail(Code::kUnavailable, "no mover runs for " + options_.gpu.value);
  }
  request.id = ++last_id_;
  if (auto sent = SendPacket(socket_.get(), &request, sizeof request, fds, MSG_DONTWAIT); !sent) {
    // Too many descriptors of this user are in flight; the mover itself is fine.
    if (sent.error().raw == ETOOMANYREFS || sent.error().raw == EBADF) {
      return Fail(std::move(sent.error()));
    }
    return lost({});
  }
  for (;;) {
    pollfd p{socket_.get(), POLLIN, 0};
    const int ready = TEMP_FAILURE_RETRY(::poll(&p, 1, deadline.PollTimeout()));
    if (ready == 0) {
      const std::string how = End();
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("the mover of {} did not {} in time, and {}", options_.gpu.value,
                              wire::OpName(request.op), running() ? how : "was ended"));
    }
    Reply reply;
    auto packet = ReceivePacket(socket_.get(), &reply, sizeof reply);
    if (!packet || packet->size == 0) return lost({});
    if (packet->fds_lost) {
      (void)lost({});
      return Fail(Code::kResourceExhausted, "we cannot hold as many descriptors as there are",
                  "raise the limit of open files (ulimit -n)");
    }
    const char* invalid = wire::WhyInvalid(reply, packet->size, packet->fds.size());
    if (invalid == nullptr && (reply.id != request.id || reply.op != request.op)) {
      invalid = "a reply that nobody asked for";
    }
    if (invalid != nullptr) return lost(invalid);
    if (reply.progress != 0) {
      if (progress) progress(reply.bytes);
      continue;
    }
    if (reply.fatal != 0) End();
    if (auto status = wire::ErrorOf(reply); !status) return Fail(std::move(status.error()));
    if (out != nullptr) {
      for (UniqueFd& fd : packet->fds) out->push_back(std::move(fd));
    }
    return reply;
  }
}

Result<Reply> MoverProcess::CallOrStart(const Request& request, std::span<const int> fds,
                                        const Deadline& deadline) {
  const bool fresh = !socket_;
  if (fresh) {
    Status connected = Connect(deadline);
    if (!connected) return WithLimitHint(Result<Reply>(Fail(std::move(connected.error()))));
  }
  auto reply = WithLimitHint(Call(request, fds, deadline));
  // An idle mover may have exited between two requests; no work is lost then.
  if (!reply && reply.error().code == Code::kUnavailable && !fresh && !socket_) {
    STASIS_TRY(Connect(deadline));
    reply = Call(request, fds, deadline);
  }
  return reply;
}

}  // namespace stasis::dataplane
