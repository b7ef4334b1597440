#include "operations/held_dump.h"

#include <fmt/format.h>

#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "operations/criu_folder.h"
#include "operations/held_criu.h"
#include "process/control_group.h"
#include "process/end.h"
#include "process/thaw.h"

namespace stasis::operations {
namespace {

using criu::PluginLink;
using Kind = criu::PluginRequest::Kind;
using std::chrono::seconds;

// Time limit for CRIU to let threads of the program run.
constexpr seconds kLetRun{20};

bool EndsOrHasEnded(const process::ProcessId& id) {
  return !process::IsAlive(id) || process::WasKilled(id);
}

// Waits until the container of a living process is unpaused: the agents of a paused container
// cannot answer.
void AwaitUnpaused(const process::ProcessId& root) {
  if (EndsOrHasEnded(root) || !process::IsFrozen(root.pid)) return;
  log::Write(
      log::Level::kWarn,
      "CRIU has left the container paused: its GPU state will be restored when it is unpaused",
      {{"pid", process::ToString(root.pid)}});
  if (Status thawed = process::AwaitThawed(root); !thawed) {
    log::Write(log::Level::kWarn, "cannot wait until the container is unpaused",
               log::ErrorFields(thawed.error()));
  }
}

// A dump whose CRIU waits in its first PAUSE_DEVICES.
class HeldDumpSession final : public criu::CriuSession {
 public:
  HeldDumpSession(gpu_state::Services& services, PluginLink& link)
      : services_(services), link_(link) {}

  // Ignores the deadline, because the runtime decides how long its CRIU may take.
  Status Dump(const criu::DumpRequest& request, const criu::NotifyHandler& handler,
              const Deadline&) override {
    STASIS_TRY(ReplaceFile(
        request.log_path,
        "CRIU was started by a container runtime or another program, which has CRIU's log.\n"));
    STASIS_ASSIGN(const process::Stat root, process::ReadStat(request.pid));
    root_ = root.id;
    images_dir_ = request.images_dir;
    // The driver can be asked only while the program is running.
    threads_ = GpuThreads(services_, request.pid);
    link_.Accept();
    for (;;) {
      auto next = link_.Next(Deadline());
      if (!next) return Lost(std::move(next).error());
      switch (next->kind) {
        case Kind::kCheck:
          Reply(failed_ ? CheckAway(next->pid) : failed_);
          break;
        case Kind::kCommit:
          Reply(Commit(handler));
          break;
        case Kind::kEnd:
          return End(next->stays);
        default:
          link_.Refuse(UnexpectedRequest());
      }
    }
  }
  Result<process::HostPid> Restore(const criu::RestoreRequest&, const criu::NotifyHandler&,
                                   const Deadline&) override {
    return Fail(Code::kInternal, "this CRIU process is not performing a restore");
  }
  bool left_running() const override { return left_running_; }
  void LetGo() override {
    if (link_.pending()) link_.Accept();
  }

 private:
  void Reply(const Status& status) {
    if (status) return link_.Accept();
    link_.Refuse(status.error());
    failed_ = status;
  }

  // Checks that the process has not begun to use a GPU since the tree was suspended.
  Status CheckAway(process::HostPid pid) {
    STASIS_ASSIGN(auto held, services_.device->DeviceFilesHeld(pid));
    if (held.empty()) return {};
    return Fail(Code::kFailedPrecondition,
                fmt::format("process {} uses a GPU, which it did not when the program was "
                            "suspended: {}",
                            pid.value, held.front()),
                "try again");
  }

  Status Commit(const criu::NotifyHandler& handler) {
    STASIS_TRY(Status(failed_));
    // The copy of CRIU's inventory lets a restore reject files that CRIU wrote in another dump.
    STASIS_ASSIGN(const std::string inventory,
                  ReadFileAt(link_.images_fd(), kInventory, kMaxInventoryBytes));
    STASIS_TRY(ReplaceFile(images_dir_ + "/" + kInventory, inventory));
    criu::Notification notification;
    notification.moment = criu::Moment::kPostDump;
    STASIS_TRY(handler(notification));
    committed_ = true;
    return {};
  }

  // Called if CRIU has exited without an END request. The kernel has then detached CRIU from the
  // program.
  Status Lost(Error error) {
    AwaitUnpaused(root_);
    if (!committed_) return failed_ ? Status(Fail(std::move(error))) : failed_;
    left_running_ = !EndsOrHasEnded(root_);
    return {};
  }

  // Called while CRIU still holds the program. If `stays` is true, CRIU will let the program run.
  Status End(bool stays) {
    if (committed_ && !stays) {
      link_.Accept();
      AwaitEndOrExit();
      return {};
    }
    // The request is answered when the program has its GPU again.
    (void)link_.LetRun(threads_, Deadline::In(kLetRun));
    left_running_ = committed_;
    if (committed_) return {};
    return failed_ ? Status(Fail(CriuFailed("dump"))) : failed_;
  }

  // Waits until CRIU has ended the program, or has exited without ending it: another action script
  // may have refused the dump after the commit.
  void AwaitEndOrExit() {
    auto root = process::OpenPidfd(root_);
    if (root) AwaitEither(root->get(), link_.exit_fd());
    if (EndsOrHasEnded(root_)) return;
    (void)link_.AwaitExit(Deadline());
    AwaitUnpaused(root_);
    left_running_ = !EndsOrHasEnded(root_);
  }

  gpu_state::Services& services_;
  PluginLink& link_;
  process::ProcessId root_;
  std::string images_dir_;  // for files of CRIU in the image of the GPU data
  std::vector<pid_t> threads_;
  Status failed_;  // the reason why the dump can no longer succeed
  bool committed_ = false;
  bool left_running_ = false;
};

class HeldDumpCriu final : public HeldCriu {
 public:
  HeldDumpCriu(gpu_state::Services& services, PluginLink& link)
      : services_(services), link_(link) {}
  Result<std::unique_ptr<criu::CriuSession>> StartDump(const std::string&, const criu::DumpRequest&,
                                                       bool, const std::map<int, int>&,
                                                       const Deadline&) override {
    return std::make_unique<HeldDumpSession>(services_, link_);
  }

 private:
  gpu_state::Services& services_;
  PluginLink& link_;
};

}  // namespace

std::shared_ptr<criu::Criu> MakeHeldDumpCriu(gpu_state::Services& services, PluginLink& link) {
  return std::make_shared<HeldDumpCriu>(services, link);
}

}  // namespace stasis::operations
