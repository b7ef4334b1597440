#include "dataplane/mover_server.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "dataplane/mover_protocol.h"
#include "dataplane/mover_work.h"
#include "dataplane/packet.h"

namespace stasis::dataplane {
namespace {

using wire::Reply;
using wire::Request;

struct Job {
  Request request;
  std::vector<UniqueFd> fds;
};

class Server {
 public:
  Server(int socket, const MoverServerOptions& options)
      : socket_(socket), options_(options), work_(options) {}

  // The thread that reads. Never returns.
  [[noreturn]] void Read() {
    std::thread([this] { Do(); }).detach();
    for (;;) {
      pollfd p{socket_, POLLIN, 0};
      const int limit =
          options_.idle_timeout.count() == 0 ? -1 : static_cast<int>(options_.idle_timeout.count());
      const int ready = TEMP_FAILURE_RETRY(::poll(&p, 1, limit));
      if (ready == 0 && !IsIdle()) continue;
      if (ready <= 0) ::_exit(0);
      Job job;
      auto packet = ReceivePacket(socket_, &job.request, sizeof job.request);
      // Nobody wants what we do any more, and nothing of it lasts: the GPU's memory is somebody
      // else's too, the arena is not complete until we have said so. No exit(): the driver's
      // destructors would run beside a thread that is inside it.
      if (!packet || packet->size == 0) ::_exit(0);
      const char* invalid = packet->fds_lost
                                ? "more descriptors than we can hold"
                                : wire::WhyInvalid(job.request, packet->size, packet->fds.size());
      if (invalid != nullptr) {
        Refuse(job.request, invalid);
        continue;
      }
      job.fds = std::move(packet->fds);
      std::unique_lock lock(mutex_);
      if (job_ || busy_) {
        lock.unlock();
        Refuse(job.request, "a request while another one is worked on");
        continue;
      }
      job_ = std::move(job);
      given_.notify_one();
    }
  }

 private:
  bool IsIdle() {
    std::lock_guard lock(mutex_);
    return !job_ && !busy_ && !holds_memory_;
  }

  void Refuse(const Request& request, const char* why) {
    Reply reply;
    reply.id = request.id;
    reply.op = request.op >= wire::Op::kHello && request.op <= wire::Op::kLast ? request.op
                                                                               : wire::Op::kHello;
    Put(reply, Error{Code::kInvalidArgument,
                     Domain::kStasis,
                     0,
                     std::string("the mover was sent ") + why,
                     {},
                     {},
                     false});
    (void)SendPacket(socket_, &reply, sizeof reply, {});
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
      Reply reply;
      reply.id = job.request.id;
      reply.op = job.request.op;
      std::vector<UniqueFd> out;
      auto progress = [&](uint64_t bytes) {
        Reply step;
        step.id = job.request.id;
        step.op = job.request.op;
        step.progress = 1;
        step.bytes = bytes;
        // Nobody has to read it; it must not hold up the copy.
        (void)SendPacket(socket_, &step, sizeof step, {}, MSG_DONTWAIT);
      };
      Status status = work_.Do(job.request, std::move(job.fds), reply, out, progress);
      if (!status) {
        out.clear();
        reply = {};
        reply.id = job.request.id;
        reply.op = job.request.op;
        Put(reply, status.error());
        reply.fatal = status.error().domain == Domain::kCuda &&
                      !IsHarmless(static_cast<int>(status.error().raw));
      }
      {
        // Before the reply is out: the next request may be here at once.
        std::lock_guard lock(mutex_);
        busy_ = false;
        holds_memory_ = work_.holds_memory();
      }
      std::vector<int> fds;
      for (const UniqueFd& fd : out) fds.push_back(fd.get());
      reply.count = static_cast<uint32_t>(fds.size());
      const bool sent = SendPacket(socket_, &reply, sizeof reply, fds).has_value();
      if (!sent || reply.fatal != 0) ::_exit(1);
    }
  }

  const int socket_;
  const MoverServerOptions options_;
  MoverWork work_;  // the working thread's

  std::mutex mutex_;
  std::condition_variable given_;
  std::optional<Job> job_;
  bool busy_ = false;
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
