#include "dataplane/mover_server.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "dataplane/mover_protocol.h"
#include "dataplane/mover_work.h"
#include "dataplane/packet.h"
#include "dataplane/resident_mover.h"

namespace stasis::dataplane {
namespace {

using wire::Op;
using wire::Reply;
using wire::Request;

constexpr std::chrono::milliseconds kOwnWork{500};

struct Job {
  std::shared_ptr<UniqueFd> client;  // null: our own, nobody waits for its reply
  Request request;
  std::vector<UniqueFd> fds;
};

class Server {
 public:
  Server(int socket, const MoverServerOptions& options)
      : options_(options),
        client_(std::make_shared<UniqueFd>(socket)),
        removals_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
        work_(options, removals_.get()) {}

  // The thread that reads. Never returns.
  [[noreturn]] void Read() {
    if (stays()) Listen();
    std::thread([this] { Do(); }).detach();
    for (;;) {
      pollfd fds[] = {{client_ ? client_->get() : -1, POLLIN, 0},
                      {listen_.get(), POLLIN, 0},
                      {removals_.get(), POLLIN, 0}};
      const int ready = TEMP_FAILURE_RETRY(::poll(fds, 3, IdleLimit().PollTimeout()));
      if (ready < 0) ::_exit(1);
      if (ready == 0 && IsIdle()) Leave();
      // The last client's end before the next one's coming: they may be here together.
      if (fds[0].revents != 0) Receive();
      if (fds[2].revents != 0) ForgetRemoved();
      if (fds[1].revents != 0) Accept();
    }
  }

 private:
  bool stays() const { return !options_.listen_path.empty(); }

  bool IsIdle() {
    std::lock_guard lock(mutex_);
    return !job_ && !busy_ && !holds_memory_;
  }
  bool IsBusy() {
    std::lock_guard lock(mutex_);
    return job_ || busy_;
  }

  // One that stays for others does not leave a client that is just thinking.
  Deadline IdleLimit() {
    if (options_.idle_timeout.count() == 0 || (stays() && client_)) return {};
    return Deadline::In(options_.idle_timeout);
  }

  // Who calls listen() is who a client sees at the other end.
  void Listen() {
    listen_.Reset(wire::kListenFd);
    if (::listen(wire::kListenFd, 8) != 0) listen_.Reset();
  }

  [[noreturn]] void Leave() {
    if (stays()) RemoveResidentName(options_.listen_path);
    // Who has connected meanwhile is told by the end of the socket. No exit(): the driver's
    // destructors would run beside a thread that is inside it.
    ::_exit(0);
  }

  void Accept() {
    UniqueFd client(::accept4(listen_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client || client_) return;
    AwaitOwnWork();
    if (!IsIdle()) return;
    client_ = std::make_shared<UniqueFd>(std::move(client));
  }

  // Mostly it takes no time; but memory that is unregistered may take more than a start does.
  bool AwaitOwnWork() {
    std::unique_lock lock(mutex_);
    return own_done_.wait_for(lock, kOwnWork, [this] { return !own_ && !releases_; });
  }

  void Receive() {
    Job job;
    job.client = client_;
    auto packet = ReceivePacket(client_->get(), &job.request, sizeof job.request);
    if (!packet || packet->size == 0) {
      // Nobody wants what we do any more, and nothing of it lasts: the GPU's memory is somebody
      // else's too, the arena is not complete until we have said so.
      AwaitOwnWork();
      if (!listen_ || IsBusy()) Leave();
      client_.reset();
      Give(OurOwn(Op::kEnd));
      return;
    }
    const char* invalid = packet->fds_lost
                              ? "more descriptors than we can hold"
                              : wire::WhyInvalid(job.request, packet->size, packet->fds.size());
    if (invalid != nullptr) return Refuse(job.request, invalid);
    job.fds = std::move(packet->fds);
    const Request request = job.request;
    if (!Give(std::move(job))) Refuse(request, "a request while another one is worked on");
  }

  void ForgetRemoved() {
    // It may have looked at that file already: what is left unread is told again.
    if (!AwaitOwnWork()) return;
    char events[4096];
    while (::read(removals_.get(), events, sizeof events) > 0) {
    }
    // Who is at work forgets them when he ends.
    Give(OurOwn(Op::kDetach));
  }

  static Job OurOwn(Op op) {
    Job job;
    job.request.op = op;
    return job;
  }

  bool Give(Job job) {
    std::unique_lock lock(mutex_);
    // A client knows nothing of work of our own, which is short.
    if (job.client != nullptr) own_done_.wait(lock, [this] { return !own_; });
    if (job_ || busy_) return false;
    if (job.request.op == Op::kDetach && job.client == nullptr && holds_memory_) return false;
    own_ = job.client == nullptr;
    releases_ = job.request.op == Op::kRelease;
    job_ = std::move(job);
    given_.notify_one();
    return true;
  }

  void Refuse(const Request& request, const char* why) {
    Reply reply;
    reply.id = request.id;
    reply.op = request.op >= Op::kHello && request.op <= Op::kLast ? request.op : Op::kHello;
    Put(reply, Error{Code::kInvalidArgument,
                     Domain::kStasis,
                     0,
                     std::string("the mover was sent ") + why,
                     {},
                     {},
                     false});
    (void)SendPacket(client_->get(), &reply, sizeof reply, {});
  }

  // The thread that works.
  void Do() {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        given_.wait(lock, [this] { return job_.has_value(); });
        job = std::move(*job_);
        job_.reset();
        busy_ = true;
      }
      if (job.client == nullptr) {
        DoOurOwn(job.request);
      } else {
        DoFor(job);
      }
    }
  }

  void DoOurOwn(const Request& request) {
    // The locks first: to unregister memory takes time, and somebody may wait for them.
    if (request.op == Op::kEnd) {
      if (!work_.End()) ::_exit(1);
      lock_.Reset();
    }
    if (!work_.ForgetRemoved()) ::_exit(1);
    std::lock_guard lock(mutex_);
    busy_ = own_ = false;
    holds_memory_ = work_.holds_memory();
    own_done_.notify_one();
  }

  void DoFor(Job& job) {
    const Request& request = job.request;
    Reply reply;
    reply.id = request.id;
    reply.op = request.op;
    std::vector<UniqueFd> out;
    auto progress = [&](uint64_t bytes) {
      Reply step;
      step.id = request.id;
      step.op = request.op;
      step.progress = 1;
      step.bytes = bytes;
      // Nobody has to read it; it must not hold up the copy.
      (void)SendPacket(job.client->get(), &step, sizeof step, {}, MSG_DONTWAIT);
    };
    const bool ends = request.op == Op::kEnd;
    if (request.op == Op::kHello && !job.fds.empty()) lock_ = std::move(job.fds[0]);
    Status status = work_.Do(request, std::move(job.fds), reply, out, progress);
    if (ends && status) lock_.Reset();
    if (!status) {
      out.clear();
      reply = {};
      reply.id = request.id;
      reply.op = request.op;
      Put(reply, status.error());
      reply.fatal = status.error().domain == Domain::kCuda &&
                    !IsHarmless(static_cast<int>(status.error().raw));
    }
    const bool leaves = (ends && (request.flags & wire::kFlagLeave) != 0) || reply.fatal != 0;
    if (leaves && stays()) RemoveResidentName(options_.listen_path);
    {
      // Before the reply is out: the next request may be here at once.
      std::lock_guard lock(mutex_);
      busy_ = releases_ = false;
      holds_memory_ = work_.holds_memory();
      own_done_.notify_one();
    }
    std::vector<int> fds;
    for (const UniqueFd& fd : out) fds.push_back(fd.get());
    reply.count = static_cast<uint32_t>(fds.size());
    const bool sent = SendPacket(job.client->get(), &reply, sizeof reply, fds).has_value();
    // That the client of one that stays has gone is the reading thread's to judge.
    if (leaves || (!sent && !stays())) ::_exit(leaves && reply.fatal == 0 ? 0 : 1);
  }

  const MoverServerOptions options_;
  // The reading thread's.
  std::shared_ptr<UniqueFd> client_;
  UniqueFd listen_;
  const UniqueFd removals_;  // tells of arenas that were removed (inotify)
  // The working thread's.
  MoverWork work_;
  UniqueFd lock_;

  std::mutex mutex_;
  std::condition_variable given_;
  std::optional<Job> job_;
  bool busy_ = false;
  bool own_ = false;       // what is given or worked on is of our own
  bool releases_ = false;  // it lets go of memory, which is short too
  std::condition_variable own_done_;
  bool holds_memory_ = false;
};

// Every handle of a save is a descriptor for a moment, and with some drivers for longer.
void RaiseFileLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void ServeMover(int socket, const MoverServerOptions& options) {
  RaiseFileLimit();
  // Lives as long as the process: its thread may still use it when it ends.
  auto& server = *new Server(socket, options);
  server.Read();
}

}  // namespace stasis::dataplane
