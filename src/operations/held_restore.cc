#include "operations/held_restore.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/fd.h"
#include "base/thread.h"
#include "checkpoint/teardown.h"
#include "operations/held_criu.h"
#include "process/tree.h"

namespace stasis::operations {
namespace {

using criu::PluginLink;
using Kind = criu::PluginRequest::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Time limit for CRIU to let threads of the program run.
constexpr seconds kLetThreadsRun{20};

// A restore whose CRIU waits in the plugin's init().
class HeldRestore final : public criu::CriuSession {
 public:
  HeldRestore(gpu_state::Services& services, PluginLink& link) : services_(services), link_(link) {}

  Status Dump(const criu::DumpRequest&, const criu::NotifyHandler&, const Deadline&) override {
    return Fail(Code::kInternal, "this CRIU process is not performing a dump");
  }
  // Returns when all threads are stopped at the end of their restore.
  Result<process::HostPid> Restore(const criu::RestoreRequest&, const criu::NotifyHandler& handler,
                                   const Deadline&) override {
    link_.Accept();
    Status failed;
    for (;;) {
      auto next = link_.Next(Deadline());
      if (!next) return Fail(failed ? std::move(next).error() : failed.error());
      switch (next->kind) {
        case Kind::kRestored: {
          criu::Notification notification;
          notification.moment = criu::Moment::kPostRestore;
          notification.pid = next->pid;
          failed = handler(notification);
          if (failed) {
            link_.Accept();
          } else {
            link_.Refuse(failed.error());
          }
          break;
        }
        case Kind::kResume:
          STASIS_TRY(link_.LetRun(GpuThreads(services_, next->pid), Deadline::In(kLetThreadsRun)));
          return next->pid;
        case Kind::kEnd:
          return Fail(failed ? CriuFailed("restore") : failed.error());
        default:
          link_.Refuse(UnexpectedRequest());
      }
    }
  }

 private:
  gpu_state::Services& services_;
  PluginLink& link_;
};

// Takes the place of a shim, which a restored container does not have. If CRIU is killed, the
// kernel lets the incomplete program run; therefore a thread watches CRIU and kills the program at
// once.
class HeldHost final : public RestoreHost {
 public:
  HeldHost(gpu_state::Services& services, PluginLink& link) : services_(services), link_(link) {}
  ~HeldHost() override { StopWatching(); }

  const process::ProcessId& shim() const override { return no_shim_; }
  Result<std::unique_ptr<criu::CriuSession>> ConnectCriu(const Deadline&) override {
    return std::make_unique<HeldRestore>(services_, link_);
  }
  Status SetRoot(const process::ProcessId& root, const Deadline&) override {
    StopWatching();
    root_ = root;
    stop_.Reset(::eventfd(0, EFD_CLOEXEC));
    if (!stop_) return FailErrno(errno, "eventfd");
    STASIS_ASSIGN(watcher_, Thread::Start([this] { Watch(); }));
    return {};
  }
  bool root_ended() const override { return !process::IsAlive(root_); }
  std::optional<int> RootStatus(const Deadline&) override { return std::nullopt; }
  // Does not answer CRIU's request; Hold::Answer() does.
  Status Commit(const Deadline&) override {
    StopWatching();
    if (!criu_has_exited()) return {};
    return Fail(Code::kUnavailable, "CRIU was killed before the program was fully restored");
  }
  // Does not wait for the killed processes while CRIU lives, because they end only after CRIU has
  // received its answer.
  Status Abort(const Deadline&) override {
    StopWatching();
    KillRestored(root_);
    if (!criu_has_exited()) return {};
    return checkpoint::EndTree(no_shim_, root_);
  }

 private:
  bool criu_has_exited() const {
    return link_.AwaitExit(Deadline::In(milliseconds(0))).has_value();
  }

  void Watch() const {
    AwaitEither(link_.exit_fd(), stop_.get());
    if (criu_has_exited()) KillRestored(root_);
  }

  void StopWatching() {
    if (stop_) (void)::eventfd_write(stop_.get(), 1);
    watcher_.Join();
  }

  gpu_state::Services& services_;
  PluginLink& link_;
  const process::ProcessId no_shim_;
  process::ProcessId root_;
  UniqueFd stop_;  // readable when the thread must end
  Thread watcher_;
};

class HeldHosts final : public RestoreHosts {
 public:
  HeldHosts(gpu_state::Services& services, PluginLink& link) : services_(services), link_(link) {}
  Result<std::unique_ptr<RestoreHost>> Start(HostSpec, const Deadline&) override {
    return std::make_unique<HeldHost>(services_, link_);
  }

 private:
  gpu_state::Services& services_;
  PluginLink& link_;
};

}  // namespace

std::shared_ptr<RestoreHosts> MakeHeldHosts(gpu_state::Services& services, PluginLink& link) {
  return std::make_shared<HeldHosts>(services, link);
}

void KillRestored(const process::ProcessId& root) {
  if (root.pid.value == 0) return;
  auto tree = process::ReadTree(root.pid);
  if (!tree || tree->root().id != root) return;
  for (const auto& member : tree->members) {
    if (auto pidfd = process::OpenPidfd(member.id)) {
      ::syscall(SYS_pidfd_send_signal, pidfd->get(), SIGKILL, nullptr, 0);
    }
  }
}

}  // namespace stasis::operations
