#include "criu/plugin_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "criu/plugin_protocol.h"
#include "ipc/socket.h"

namespace stasis::criu {
namespace {

using Kind = PluginRequest::Kind;
using std::chrono::seconds;

// Time limit for the plugin to receive a frame, or to resume threads (LetRun). CRIU does nothing
// else in that time.
constexpr seconds kPluginAnswer{20};

struct KindRow {
  uint16_t number;
  Kind kind;
};
constexpr KindRow kRequests[] = {
    {STASIS_CRIU_BEGIN_DUMP, Kind::kBeginDump},
    {STASIS_CRIU_BEGIN_RESTORE, Kind::kBeginRestore},
    {STASIS_CRIU_PAUSE, Kind::kPause},
    {STASIS_CRIU_CHECK, Kind::kCheck},
    {STASIS_CRIU_COMMIT, Kind::kCommit},
    {STASIS_CRIU_RESTORED, Kind::kRestored},
    {STASIS_CRIU_RESUME, Kind::kResume},
    {STASIS_CRIU_RUNNING, Kind::kRunning},
    {STASIS_CRIU_END, Kind::kEnd},
    {STASIS_CRIU_COMPLETE, Kind::kComplete},
};

stasis_criu_frame FrameOf(uint16_t kind) {
  stasis_criu_frame frame = {};
  frame.magic = STASIS_CRIU_MAGIC;
  frame.version = STASIS_CRIU_VERSION;
  frame.kind = kind;
  return frame;
}

// Does not block. The plugin waits for the answer, so the socket has room unless CRIU has exited.
void SendFrame(int socket, const stasis_criu_frame& frame) {
  (void)ipc::SendPacket(socket, &frame, sizeof frame, {}, MSG_DONTWAIT | MSG_NOSIGNAL);
}

stasis_criu_frame RefusalOf(std::string text) {
  stasis_criu_frame frame = FrameOf(STASIS_CRIU_REFUSED);
  // The text may contain names from an image, and goes to a log and to terminals, so it must not
  // contain control characters.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  text.resize(std::min<size_t>(text.size(), STASIS_CRIU_TEXT - 1));
  frame.length = static_cast<uint32_t>(text.size());
  std::memcpy(frame.text, text.data(), text.size());
  return frame;
}

class SocketLink final : public PluginLink {
 public:
  SocketLink(UniqueFd socket, process::HostPid criu, UniqueFd pidfd)
      : socket_(std::move(socket)), criu_(criu), pidfd_(std::move(pidfd)) {}

  Result<PluginRequest> Next(const Deadline& deadline) override {
    for (;;) {
      STASIS_ASSIGN(const bool readable, AwaitFrame(deadline));
      if (!readable) {
        STASIS_TRY(AwaitExit(deadline));
        return Fail(HasExited());
      }
      stasis_criu_frame frame;
      auto packet = ipc::ReceivePacket(socket_.get(), &frame, sizeof frame);
      if (!packet || packet->size == 0) {
        closed_ = true;
        continue;
      }
      auto request = Decode(frame, packet->size);
      if (!request) {
        Refuse(request.error());
        return request;
      }
      if (!packet->fds.empty() && !images_) images_ = std::move(packet->fds.front());
      pending_ = true;
      return request;
    }
  }

  bool pending() const override { return pending_; }
  void Accept() override { Answer(FrameOf(STASIS_CRIU_OK)); }
  void AnswerNoGpu() override { Answer(FrameOf(STASIS_CRIU_NO_GPU)); }
  void Refuse(const Error& why) override {
    std::string text = why.ToString();
    if (!why.hint.empty()) text += ". " + why.hint;
    Answer(RefusalOf(std::move(text)));
  }

  Status LetRun(const std::vector<pid_t>& threads, const Deadline& deadline) override {
    size_t sent = 0;
    do {
      const size_t count = std::min<size_t>(threads.size() - sent, STASIS_CRIU_THREADS);
      stasis_criu_frame frame = FrameOf(STASIS_CRIU_THREAD_IDS);
      frame.length = static_cast<uint32_t>(count * sizeof(int32_t));
      std::memcpy(frame.text, threads.data() + sent, frame.length);
      sent += count;
      frame.value = sent < threads.size() ? 1 : 0;
      SendFrame(socket_.get(), frame);
    } while (sent < threads.size());
    STASIS_ASSIGN(const PluginRequest running,
                  Next(Deadline::Sooner(deadline, Deadline::In(kPluginAnswer))));
    if (running.kind == Kind::kRunning) return {};
    return Fail(Code::kInternal, "CRIU's plugin sent an unexpected request");
  }

  Status AwaitExit(const Deadline& deadline) override {
    if (ipc::AwaitReadable(pidfd_.get(), deadline)) return {};
    return Fail(Code::kDeadlineExceeded,
                fmt::format("CRIU (process {}) has not exited", criu_.value));
  }

  int exit_fd() const override { return pidfd_.get(); }
  int request_fd() const override { return socket_.get(); }

  int images_fd() const override { return images_.get(); }
  process::HostPid criu() const override { return criu_; }

 private:
  void Answer(const stasis_criu_frame& frame) {
    pending_ = false;
    SendFrame(socket_.get(), frame);
  }

  Error HasExited() const {
    Error error{Code::kUnavailable};
    error.message = fmt::format("CRIU (process {}) has exited", criu_.value);
    return error;
  }

  // Returns false if CRIU has exited or the connection has ended. CRIU's action script shares the
  // connection and may outlive CRIU. Requests that it sends after that are ignored.
  Result<bool> AwaitFrame(const Deadline& deadline) {
    for (;;) {
      pollfd waits[] = {{pidfd_.get(), POLLIN, 0}, {closed_ ? -1 : socket_.get(), POLLIN, 0}};
      if (closed_) return false;
      const int ready = ::poll(waits, std::size(waits), deadline.PollTimeout());
      if (ready < 0 && errno != EINTR) return Fail(ErrnoError(errno, "poll"));
      if (ready > 0 && waits[0].revents != 0) return false;
      if (ready > 0) return true;
      if (deadline.passed()) {
        return Fail(Code::kDeadlineExceeded,
                    fmt::format("CRIU (process {}) has not continued", criu_.value));
      }
    }
  }

  static Result<PluginRequest> Decode(const stasis_criu_frame& frame, size_t size) {
    if (size != sizeof frame || frame.magic != STASIS_CRIU_MAGIC) {
      return Fail(Code::kInvalidArgument, "CRIU's plugin sent an invalid frame");
    }
    if (frame.version != STASIS_CRIU_VERSION) {
      return Fail(
          Code::kUnimplemented,
          fmt::format("CRIU's plugin uses version {} of the protocol, and stasisd version {}",
                      frame.version, STASIS_CRIU_VERSION),
          "install the plugin of this version of Stasis");
    }
    const auto* row = std::find_if(std::begin(kRequests), std::end(kRequests),
                                   [&](const KindRow& r) { return r.number == frame.kind; });
    if (row == std::end(kRequests)) {
      return Fail(Code::kUnimplemented, "CRIU's plugin sent an unknown request");
    }
    PluginRequest request{row->kind, {frame.pid}, frame.value != 0};
    request.early = request.kind == Kind::kPause && frame.value == STASIS_CRIU_STAYS_EARLY;
    if (request.kind == Kind::kBeginRestore) {
      const size_t length = std::min<size_t>(frame.length, STASIS_CRIU_TEXT);
      request.gpu_map.assign(frame.text, ::strnlen(frame.text, length));
      request.refuses_uvm = (frame.value & STASIS_CRIU_REFUSES_UVM) != 0;
      for (int minor = 0; minor < STASIS_CRIU_MINORS; ++minor) {
        if ((frame.value >> minor & 1) != 0) request.refused_minors.push_back(minor);
      }
    }
    return request;
  }

  const UniqueFd socket_;
  const process::HostPid criu_;
  const UniqueFd pidfd_;
  UniqueFd images_;
  bool closed_ = false;
  bool pending_ = false;
};

}  // namespace

Result<std::unique_ptr<PluginLink>> MakePluginLink(UniqueFd socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Fail(ErrnoError(errno, "SO_PEERCRED"));
  }
  return MakePluginLink(std::move(socket), {peer.pid});
}

Result<std::unique_ptr<PluginLink>> MakePluginLink(UniqueFd socket, process::HostPid criu) {
  auto stat = process::ReadStat(criu);
  auto pidfd = stat ? process::OpenPidfd(stat->id) : Result<UniqueFd>(Fail(stat.error()));
  if (!pidfd) {
    return Fail(Code::kUnavailable, "CRIU has exited: " + pidfd.error().ToString());
  }
  return std::make_unique<SocketLink>(std::move(socket), criu, std::move(*pidfd));
}

}  // namespace stasis::criu
