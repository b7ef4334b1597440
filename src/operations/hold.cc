#include "operations/hold.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <sstream>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "checkpoint/agent_files.h"
#include "checkpoint/teardown.h"
#include "criu/criu.h"
#include "criu/plugin_protocol.h"
#include "operations/dump.h"
#include "operations/restore.h"
#include "process/control_group.h"
#include "process/end.h"
#include "process/tree.h"
#include "store/beneath.h"
#include "store/image_reader.h"
#include "store/image_reference.h"

namespace stasis::operations {
namespace {

using criu::Moment;
using criu::PluginLink;
using criu::PluginRequest;
using Kind = PluginRequest::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Time limit from init() to the first PAUSE_DEVICES of a dump, in which CRIU only prepares itself,
// and from fini() to CRIU's exit.
constexpr seconds kBegin{60};
constexpr seconds kLetRun{20};
constexpr milliseconds kPollEnd{50};
constexpr milliseconds kPollThawed{100};  // version 1 of control groups has no event
constexpr char kAgentThreads[] = "stasis-";
// CRIU writes this file last, before post-dump. It contains the id of the dump.
constexpr char kInventory[] = "inventory.img";
constexpr char kInventoryCopy[] = "cpu/inventory.img";  // in the image of the GPU data
constexpr size_t kMaxInventoryBytes = 1u << 20;

Error Unexpected() {
  Error error{Code::kInternal};
  error.message = "CRIU's plugin sent a request out of order";
  return error;
}

Error CriuFailed(const char* what) {
  Error error{Code::kAborted};
  error.message = fmt::format("CRIU could not {} the program", what);
  error.hint = "CRIU's log, which the container runtime names, says why";
  return error;
}

// Returns the threads that must run while the GPU state moves, although CRIU has stopped the
// program: the agents' threads and the driver's restore threads.
std::vector<pid_t> GpuThreads(const gpu_state::Services& services, process::HostPid root) {
  std::vector<pid_t> found;
  auto tree = process::ReadTree(root);
  if (!tree) return found;
  for (const auto& member : tree->members) {
    if (!process::IsAlive(member)) continue;
    auto threads = process::ReadThreads(member.id.pid);
    if (!threads) continue;
    for (const pid_t thread : *threads) {
      auto name = ReadFile(fmt::format("/proc/{}/task/{}/comm", member.id.pid.value, thread), 64);
      if (name && name->starts_with(kAgentThreads)) found.push_back(thread);
    }
    auto restores = services.device->RestoreThread(member.id.pid);
    if (restores && *restores > 0 && *restores != member.id.pid.value) found.push_back(*restores);
  }
  return found;
}

bool EndsOrHasEnded(const process::ProcessId& id) {
  return !process::IsAlive(id) || process::WasKilled(id);
}

void KillTree(const process::ProcessId& root) {
  if (root.pid.value == 0) return;
  auto tree = process::ReadTree(root.pid);
  if (!tree || tree->root().id != root) return;
  for (const auto& member : tree->members) {
    if (auto pidfd = process::OpenPidfd(member.id)) {
      ::syscall(SYS_pidfd_send_signal, pidfd->get(), SIGKILL, nullptr, 0);
    }
  }
}

// Waits while the container of a living process is paused: its agents cannot answer until then.
void AwaitThawed(const process::ProcessId& root) {
  auto is_paused = [&] { return !EndsOrHasEnded(root) && process::IsFrozen(root.pid); };
  if (!is_paused()) return;
  log::Write(log::Level::kWarn,
             "CRIU has left the container paused: its GPU state is restored when it is unpaused",
             {{"pid", process::ToString(root.pid)}});
  while (is_paused()) std::this_thread::sleep_for(kPollThawed);
}

// Starts no CRIU, because the plugin's CRIU runs already.
class HeldCriu : public criu::Criu {
 public:
  Status CheckPrivileges() override { return {}; }
  Result<std::string> Find(const std::string&) override { return std::string(); }
  Result<std::string> Version(const std::string&, const Deadline&) override {
    return std::string();
  }
  Result<std::unique_ptr<criu::CriuSession>> StartDump(const std::string&, const criu::DumpRequest&,
                                                       bool, const std::map<int, int>&,
                                                       const Deadline&) override {
    return Fail(Code::kInternal, "this CRIU does not dump");
  }
};

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
        "A container runtime or another program started CRIU. It has the log of CRIU.\n"));
    STASIS_ASSIGN(const process::Stat root, process::ReadStat(request.pid));
    root_ = root.id;
    images_dir_ = request.images_dir;
    // The driver can be asked only while the program runs.
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
          link_.Refuse(Unexpected());
      }
    }
  }
  Result<process::HostPid> Restore(const criu::RestoreRequest&, const criu::NotifyHandler&,
                                   const Deadline&) override {
    return Fail(Code::kInternal, "this CRIU does not restore");
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
    // The copy lets a restore reject files of CRIU that are of another dump.
    STASIS_ASSIGN(const std::string inventory,
                  ReadFileAt(link_.images_fd(), kInventory, kMaxInventoryBytes));
    STASIS_TRY(ReplaceFile(images_dir_ + "/" + kInventory, inventory));
    criu::Notification notification;
    notification.moment = Moment::kPostDump;
    STASIS_TRY(handler(notification));
    committed_ = true;
    return {};
  }

  // CRIU has exited without an END request, and the kernel has detached it from the program.
  Status Lost(Error error) {
    AwaitThawed(root_);
    if (!committed_) return failed_ ? Status(Fail(std::move(error))) : failed_;
    left_running_ = !EndsOrHasEnded(root_);
    return {};
  }

  // CRIU still holds the program. If `stays`, it will let the program run.
  Status End(bool stays) {
    if (committed_ && !stays) {
      link_.Accept();
      // Another action script may have refused the dump after the commit.
      while (!EndsOrHasEnded(root_)) {
        if (!link_.AwaitExit(Deadline::In(kPollEnd))) continue;
        AwaitThawed(root_);
        left_running_ = !EndsOrHasEnded(root_);
        break;
      }
      return {};
    }
    // The request is answered when the program has its GPU again.
    (void)link_.LetRun(threads_, Deadline::In(kLetRun));
    left_running_ = committed_;
    if (committed_) return {};
    return failed_ ? Status(Fail(CriuFailed("dump"))) : failed_;
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

// A restore whose CRIU waits in the plugin's init().
class HeldRestore final : public criu::CriuSession {
 public:
  HeldRestore(gpu_state::Services& services, PluginLink& link) : services_(services), link_(link) {}

  Status Dump(const criu::DumpRequest&, const criu::NotifyHandler&, const Deadline&) override {
    return Fail(Code::kInternal, "this CRIU does not dump");
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
          notification.moment = Moment::kPostRestore;
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
          STASIS_TRY(link_.LetRun(GpuThreads(services_, next->pid), Deadline::In(kLetRun)));
          return next->pid;
        case Kind::kEnd:
          return Fail(failed ? CriuFailed("restore") : failed.error());
        default:
          link_.Refuse(Unexpected());
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
    root_ = root;
    STASIS_ASSIGN(watcher_, Thread::Start([this] { Watch(); }));
    return {};
  }
  bool root_ended() const override { return !process::IsAlive(root_); }
  // Hold::Answer() answers the request.
  Status Commit(const Deadline&) override {
    StopWatching();
    if (!link_.AwaitExit(Deadline::In(milliseconds(0)))) return {};
    return Fail(Code::kUnavailable, "CRIU was killed before the program was fully restored");
  }
  // While CRIU lives, the killed processes end only after CRIU has its answer.
  Status Abort(const Deadline&) override {
    StopWatching();
    KillTree(root_);
    if (!link_.AwaitExit(Deadline::In(milliseconds(0)))) return {};
    return checkpoint::EndTree(no_shim_, root_);
  }

 private:
  void Watch() const {
    while (!stop_) {
      if (!link_.AwaitExit(Deadline::In(kPollEnd))) continue;
      KillTree(root_);
      return;
    }
  }

  void StopWatching() {
    stop_ = true;
    watcher_.Join();
  }

  gpu_state::Services& services_;
  PluginLink& link_;
  const process::ProcessId no_shim_;
  process::ProcessId root_;
  std::atomic<bool> stop_{false};
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

// CRIU mounts the control groups into its image folder during a restore. A CRIU that was killed
// leaves these mounts behind, and they prevent the removal of the folder.
void RemoveCgroupYard(const std::string& images) {
  auto names = ListDir(images);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(".criu.cgyard.")) continue;
    const std::string path = images + "/" + name;
    (void)::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    (void)::rmdir(path.c_str());
  }
}

// Checks that the GPU data and CRIU's files were written by the same dump.
Status CheckSameDump(const std::string& images, const std::string& data) {
  auto criu = ReadFile(images + "/" + kInventory, kMaxInventoryBytes);
  auto copy = ReadFile(data + "/" + kInventoryCopy, kMaxInventoryBytes);
  if (criu && copy && *criu == *copy) return {};
  return Fail(
      Code::kDataLoss,
      fmt::format("CRIU's files in {} and the GPU data in {} are not of the same dump: {} "
                  "is not the file that {} is a copy of",
                  images, data, kInventory, kInventoryCopy),
      "restore from a folder that a single dump wrote, and whose files were copied together");
}

// CRIU can save a mounted file that was deleted or replaced, but no container runtime can restore
// it: the runtime needs a file at that path, and CRIU does not replace it.
Status CheckMountedFiles(process::HostPid root) {
  STASIS_ASSIGN(const std::string mounts, ReadFile(fmt::format("/proc/{}/mountinfo", root.value)));
  std::istringstream lines(mounts);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string skipped, source, point;
    words >> skipped >> skipped >> skipped >> source >> point;
    if (!source.ends_with("//deleted")) continue;
    return Fail(Code::kFailedPrecondition,
                fmt::format("the file that is mounted at {} was deleted or replaced, and a restore "
                            "could not mount it again",
                            point),
                "start the container again, and mount the folder instead of the file");
  }
  return {};
}

// Returns the path of CRIU's image folder. It must lead to the same folder in this process, because
// recovery opens the folder by its path.
Result<std::string> PathOf(int folder) {
  STASIS_ASSIGN(std::string path, ReadLink(fmt::format("/proc/self/fd/{}", folder)));
  struct stat by_fd, by_path;
  if (::fstat(folder, &by_fd) != 0) return FailErrno(errno, "stat CRIU's image folder");
  if (::stat(path.c_str(), &by_path) == 0 && FileId::Of(by_fd) == FileId::Of(by_path)) return path;
  return Fail(Code::kUnimplemented,
              fmt::format("stasisd does not have CRIU's image folder {}: it is in another mount "
                          "namespace",
                          path));
}

}  // namespace

Result<std::unique_ptr<Hold>> Hold::Open(UniqueFd connection) {
  STASIS_ASSIGN(std::shared_ptr<PluginLink> link, criu::MakePluginLink(std::move(connection)));
  return Open(std::move(link));
}

Result<std::unique_ptr<Hold>> Hold::Open(std::shared_ptr<PluginLink> link) {
  std::unique_ptr<Hold> hold(new Hold(std::move(link)));
  auto open = [&]() -> Status {
    STASIS_ASSIGN(hold->request_, hold->link_->Next(Deadline::In(kBegin)));
    const Kind kind = hold->request_.kind;
    if (kind != Kind::kBeginDump && kind != Kind::kBeginRestore) return Fail(Unexpected());
    if (hold->link_->images_fd() < 0) return Fail(Unexpected());
    STASIS_ASSIGN(hold->images_, PathOf(hold->link_->images_fd()));
    hold->folder_ = hold->images_ + "/" + STASIS_CRIU_FOLDER;
    if (kind == Kind::kBeginRestore) {
      hold->verb_ = "restore";
      hold->target_ = hold->folder_;
      return {};
    }
    hold->link_->Accept();
    STASIS_ASSIGN(hold->request_, hold->link_->Next(Deadline::In(kBegin)));
    if (hold->request_.kind != Kind::kPause) return Fail(Unexpected());
    hold->verb_ = "dump";
    hold->target_ = process::ToString(hold->request_.pid);
    return {};
  };
  Status opened = open();
  if (opened) return hold;
  if (hold->link_->pending()) hold->link_->Refuse(opened.error());
  return Fail(std::move(opened).error());
}

Result<OperationResult> Hold::Run(Session& session, const HoldOptions& hold,
                                  const OperationOptions& options) {
  auto result = verb_ == "dump" ? Dump(session, hold, options) : Restore(session, options);
  if (!result && link_->AwaitExit(Deadline::In(milliseconds(0)))) RemoveCgroupYard(images_);
  return result;
}

Result<OperationResult> Hold::Dump(Session& session, const HoldOptions& hold,
                                   const OperationOptions& options) {
  STASIS_ASSIGN(const process::ProcessTree tree, process::ReadTree(request_.pid));
  STASIS_ASSIGN(const auto users, session.services.device->FindProcesses(tree));
  if (users.empty()) {
    link_->AnswerNoGpu();
    OperationResult result;
    result.target = target_;
    result.notes.push_back("it uses no GPU");
    return result;
  }
  STASIS_TRY(CheckMountedFiles(request_.pid));
  DumpOptions dump;
  if (hold.by_reference) {
    dump.store = session.services.paths.images();
    dump.subject = hold.subject;
  } else {
    dump.store = images_;
    dump.name = STASIS_CRIU_FOLDER;
  }
  dump.leave_running = request_.stays;
  dump.compression = hold.compression;
  dump.held = {folder_, request_.early};
  session.criu = std::make_shared<HeldDumpCriu>(session.services, *link_);
  return operations::Dump(session, {target_, "", tree.root().id}, dump, options);
}

Result<OperationResult> Hold::Restore(Session& session, const OperationOptions& options) {
  if (request_.refuses_uvm) {
    return Fail(
        Code::kFailedPrecondition,
        "the device rules of the container do not allow /dev/nvidia-uvm, whose device number "
        "may have changed since they were written",
        "create the container anew with CDI, or correct its specification");
  }
  // A link could name another program's image.
  struct stat st;
  if (::lstat(folder_.c_str(), &st) == 0 && !S_ISDIR(st.st_mode)) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                folder_ + " is a " + store::FileTypeName(st.st_mode) + ", not a folder");
  }
  RestoreOptions restore;
  STASIS_ASSIGN(restore.image, store::FollowReference(folder_, session.services.paths.images()));
  STASIS_TRY(CheckSameDump(images_, restore.image));
  restore.held = true;
  restore.gpu_map = request_.gpu_map;
  restore.refused_minors = request_.refused_minors;
  // The program that drives CRIU trusts CRIU's files of the same folder, too.
  restore.trust_image = true;
  session.criu = std::make_shared<HeldCriu>();
  session.restore_hosts = std::make_shared<HeldHosts>(session.services, *link_);
  auto result = operations::Restore(session, restore, options);
  if (result) {
    if (auto root = process::ReadStat({result->pid})) restored_ = root->id;
  }
  return result;
}

Status PutBackAgent(const std::string& images, const Paths& paths) {
  const std::string folder = images + "/" STASIS_CRIU_FOLDER;
  if (!PathExists(folder)) return {};
  STASIS_ASSIGN(const std::string data, store::FollowReference(folder, paths.images()));
  STASIS_ASSIGN(const auto reader, store::ImageReader::Open(data));
  STASIS_ASSIGN(const auto report, reader->Verify(store::VerifyLevel::kAllButUnits));
  STASIS_TRY(report.ToStatus(data));
  return checkpoint::PutBackAgentLibraries(
      *reader, checkpoint::AgentSourceFor(*reader, paths, /*trusted=*/false));
}

void Hold::Answer(const Status& result) {
  if (!link_->pending() && request_.early) (void)link_->Next(Deadline::In(kBegin));
  if (!link_->pending()) return;
  if (!result) return link_->Refuse(result.error());
  link_->Accept();
  if (restored_.pid.value == 0) return;
  // The container runtime does not know the program yet. If CRIU fails now, the runtime reports a
  // failed restore, and the program must not run.
  auto end = link_->Next(Deadline());
  if (!end || end->kind != Kind::kEnd || !end->stays) {
    log::Write(log::Level::kWarn, "CRIU has failed after the restore: the program is killed",
               {{"pid", process::ToString(restored_.pid)}});
    KillTree(restored_);
  }
  if (!end) return RemoveCgroupYard(images_);
  link_->Accept();
}

}  // namespace stasis::operations
