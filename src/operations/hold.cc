#include "operations/hold.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "criu/plugin_protocol.h"
#include "operations/criu_folder.h"
#include "operations/dump.h"
#include "operations/held_criu.h"
#include "operations/held_dump.h"
#include "operations/held_restore.h"
#include "operations/restore.h"
#include "process/tree.h"
#include "store/beneath.h"
#include "store/image_reference.h"

namespace stasis::operations {
namespace {

using criu::PluginLink;
using criu::PluginRequest;
using Kind = PluginRequest::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Time limit from init() to the first PAUSE_DEVICES of a dump, in which CRIU only prepares
// itself, and from fini() to CRIU's exit.
constexpr seconds kBegin{60};

// Refuses mounts of files that were deleted or replaced. CRIU can save them, but no container
// runtime can restore them: the runtime needs a file at that path, and CRIU does not create it.
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
    if (kind != Kind::kBeginDump && kind != Kind::kBeginRestore) return Fail(UnexpectedRequest());
    if (hold->link_->images_fd() < 0) return Fail(UnexpectedRequest());
    STASIS_ASSIGN(hold->images_, PathOfFolder(hold->link_->images_fd()));
    hold->folder_ = hold->images_ + "/" + STASIS_CRIU_FOLDER;
    if (kind == Kind::kBeginRestore) {
      hold->verb_ = "restore";
      hold->target_ = hold->folder_;
      return {};
    }
    hold->link_->Accept();
    STASIS_ASSIGN(hold->request_, hold->link_->Next(Deadline::In(kBegin)));
    if (hold->request_.kind != Kind::kPause) return Fail(UnexpectedRequest());
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
  session.criu = MakeHeldDumpCriu(session.services, *link_);
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
  // Links are rejected: a link could lead to another program's image.
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
  session.restore_hosts = MakeHeldHosts(session.services, *link_);
  auto result = operations::Restore(session, restore, options);
  if (result) {
    if (auto root = process::ReadStat({result->pid})) restored_ = root->id;
  }
  return result;
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
    log::Write(log::Level::kWarn, "CRIU failed after the restore, so the program is being killed",
               {{"pid", process::ToString(restored_.pid)}});
    KillRestored(restored_);
  }
  if (!end) return RemoveCgroupYard(images_);
  link_->Accept();
}

}  // namespace stasis::operations
