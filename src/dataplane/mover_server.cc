#include "dataplane/mover_server.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "base/descriptor_table.h"
#include "base/fd.h"
#include "base/thread.h"
#include "dataplane/mover_protocol.h"
#include "dataplane/mover_work.h"
#include "ipc/helper_process.h"
#include "ipc/resident.h"
#include "ipc/socket.h"

namespace stasis::dataplane {
namespace {

using wire::Op;
using wire::Reply;
using wire::Request;

constexpr std::chrono::milliseconds kOwnWork{500};  // how long to wait for internal work

struct Job {
  std::shared_ptr<UniqueFd> client;  // null for internal work, which has no reply
  Request request;
  std::vector<UniqueFd> fds;
};

class Server {
 public:
  explicit Server(const ipc::HelperServerOptions& options)
      : options_(options),
        client_(std::make_shared<UniqueFd>(ipc::kHelperSocketFd)),
        removals_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
        work_(options, removals_.get()) {}

  // The loop of the reading thread. Never returns.
  [[noreturn]] void Read() {
    if (options_.resident()) listen_ = ipc::ListenAsHelper();
    ipc::NameWatch name(options_.listen_path);
    bool unfindable = false;  // no client can find this mover any more
    auto worker = Thread::Start([this] { Do(); });
    if (!worker) RefuseFirstAndLeave(worker.error());
    std::move(*worker).Detach();
    for (;;) {
      pollfd fds[] = {{client_ ? client_->get() : -1, POLLIN, 0},
                      {listen_.get(), POLLIN, 0},
                      {removals_.get(), POLLIN, 0},
                      {name.fd(), POLLIN, 0}};
      const int ready = TEMP_FAILURE_RETRY(::poll(fds, 4, IdleLimit().PollTimeout()));
      if (ready < 0) ::_exit(1);
      if (ready == 0 && IsIdle()) ipc::ExitHelper(options_);
      // Handle the disconnect before the new connection; one poll may report both.
      if (fds[0].revents != 0) Receive();
      if (fds[2].revents != 0) ForgetRemoved();
      if (fds[1].revents != 0) Accept();
      if (fds[3].revents != 0) unfindable = unfindable || name.IsRemoved();
      if (unfindable && !client_ && AwaitOwnWork() && IsIdle()) ::_exit(0);
    }
  }

 private:
  bool IsIdle() {
    std::lock_guard lock(mutex_);
    return !job_ && !busy_ && !holds_memory_;
  }
  bool IsBusy() {
    std::lock_guard lock(mutex_);
    return job_ || busy_;
  }

  // A connected client is not timed out, however long it takes between two requests. A private
  // mover therefore ends with its client.
  Deadline IdleLimit() {
    if (options_.idle_timeout.count() == 0 || client_) return {};
    return Deadline::In(options_.idle_timeout);
  }

  void Accept() {
    UniqueFd client = ipc::AcceptClient(listen_.get());
    if (!client || client_) return;
    AwaitOwnWork();
    if (!IsIdle()) return;
    client_ = std::make_shared<UniqueFd>(std::move(client));
  }

  // Waits until the server's own requests (OurOwn) and releases have been executed. Gives up after
  // kOwnWork, because unregistering memory may take longer than the start of another mover.
  bool AwaitOwnWork() {
    std::unique_lock lock(mutex_);
    return own_done_.wait_for(lock, kOwnWork, [this] { return !own_ && !releases_; });
  }

  void Receive() {
    Job job;
    job.client = client_;
    auto packet = ipc::ReceivePacket(client_->get(), &job.request, sizeof job.request);
    if (!packet || packet->size == 0) {
      // The client is gone, and unfinished work has no lasting effect: GPU memory is shared with
      // its owner, and the arena is incomplete until the client says otherwise.
      AwaitOwnWork();
      if (!listen_ || IsBusy()) ipc::ExitHelper(options_);
      client_.reset();
      Give(OurOwn(Op::kEnd));
      return;
    }
    const char* invalid = packet->fds_lost
                              ? "more descriptors than it can open"
                              : wire::WhyInvalid(job.request, packet->size, packet->fds.size());
    if (invalid != nullptr) return Refuse(job.request, invalid);
    job.fds = std::move(packet->fds);
    const Request request = job.request;
    if (!Give(std::move(job))) Refuse(request, "a request while another one is in progress");
  }

  void ForgetRemoved() {
    // One of the server's own requests may be in progress and may have checked the files before the
    // latest removal, so wait for its end. If it does not end in time, the events stay unread and
    // poll reports them again.
    if (!AwaitOwnWork()) return;
    char events[4096];
    while (::read(removals_.get(), events, sizeof events) > 0) {
    }
    // If a request is in progress, the files are unmapped at its end.
    Give(OurOwn(Op::kDetach));
  }

  static Job OurOwn(Op op) {
    Job job;
    job.request.op = op;
    return job;
  }

  bool Give(Job job) {
    std::unique_lock lock(mutex_);
    // The server's own requests are short and unknown to the client, so wait for their end instead
    // of refusing the client's request.
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
    Refuse(request, Error{Code::kInvalidArgument,
                          Domain::kStasis,
                          0,
                          std::string("the mover was sent ") + why,
                          {},
                          {},
                          false});
  }

  // `fatal`: this mover exits, and the client must not use it again.
  void Refuse(const Request& request, const Error& error, bool fatal = false) {
    Reply reply;
    reply.id = request.id;
    reply.op = request.op >= Op::kHello && request.op <= Op::kLast ? request.op : Op::kHello;
    Put(reply, error);
    reply.fatal = fatal;
    (void)ipc::SendPacket(client_->get(), &reply, sizeof reply);
  }

  // If no worker thread can be started: reports the reason to the client and exits.
  [[noreturn]] void RefuseFirstAndLeave(const Error& error) {
    Request request{};
    auto packet = ipc::ReceivePacket(client_->get(), &request, sizeof request);
    if (packet && packet->size != 0) Refuse(request, error, /*fatal=*/true);
    ipc::ExitHelper(options_);
  }

  // The worker thread.
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
    assert(own_ && (request.op == Op::kEnd || request.op == Op::kDetach));
    // Release the locks first: unregistering memory takes time, and another process may wait for
    // them.
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
      // Progress reports are optional and must not delay the copy.
      (void)ipc::SendPacket(job.client->get(), &step, sizeof step, {}, MSG_DONTWAIT);
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
    if (leaves && options_.resident()) ipc::RemoveResidentName(options_.listen_path);
    {
      // Update the state before the reply is sent, because the next request may follow immediately.
      std::lock_guard lock(mutex_);
      busy_ = releases_ = false;
      holds_memory_ = work_.holds_memory();
      own_done_.notify_one();
    }
    std::vector<int> fds;
    for (const UniqueFd& fd : out) fds.push_back(fd.get());
    reply.count = static_cast<uint32_t>(fds.size());
    assert(wire::WhyInvalid(reply, sizeof reply, fds.size()) == nullptr);
    const bool sent = ipc::SendPacket(job.client->get(), &reply, sizeof reply, fds).has_value();
    // In a resident mover the reading thread handles a disconnected client.
    if (leaves || (!sent && !options_.resident())) ::_exit(leaves && reply.fatal == 0 ? 0 : 1);
  }

  const ipc::HelperServerOptions options_;
  // Used by the reading thread only.
  std::shared_ptr<UniqueFd> client_;
  UniqueFd listen_;
  const UniqueFd removals_;  // inotify: reports removed arenas
  // Used by the worker thread only.
  MoverWork work_;
  UniqueFd lock_;

  std::mutex mutex_;
  std::condition_variable given_;
  std::optional<Job> job_;
  bool busy_ = false;
  bool own_ = false;       // the current job is internal work
  bool releases_ = false;  // the current job frees memory, which is also short
  std::condition_variable own_done_;
  bool holds_memory_ = false;
};

}  // namespace

void ServeMover(const ipc::HelperServerOptions& options) {
  // During a save, this process has a descriptor of every handle for a short time; with some
  // drivers for longer.
  (void)RaiseDescriptorLimit();
  // Never destroyed: its thread may still use it when the process exits.
  auto& server = *new Server(options);
  server.Read();
}

}  // namespace stasis::dataplane
