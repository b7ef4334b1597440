#include "criu/restore_plugin.h"

#include <unistd.h>

#include <chrono>

#include "base/install_layout.h"
#include "criu/plugin_protocol.h"

namespace stasis::criu {
namespace {

// Time limit for CRIU to let threads of the program run.
constexpr std::chrono::seconds kLetThreadsRun{20};

}  // namespace

std::string RestorePlugin::Folder() {
  auto root = InstallRoot();
  if (!root) return "";
  const std::string folder = *root + "/lib/stasis/criu-restore";
  return ::access((folder + "/stasis_restore.so").c_str(), R_OK) == 0 ? folder : "";
}

void RestorePlugin::AddTo(SwrkCommand& command) {
  command.env.push_back(STASIS_CRIU_CONNECTION "=" + std::to_string(kSocketFd));
}

Status RestorePlugin::Serve(const Pids& pids, const NotifyHandler& handler) {
  auto request = link_->Next(Deadline::In(std::chrono::milliseconds(0)));
  if (!request) {  // the connection has ended; CRIU's own answer tells more
    link_.reset();
    return {};
  }
  Status verdict;
  switch (request->kind) {
    case PluginRequest::Kind::kBeginRestore:
      is_loaded_ = true;
      break;
    case PluginRequest::Kind::kResume:
      has_stopped_ = true;
      verdict = OnStopped(request->pid.value, pids, handler);
      break;
    default:
      verdict = Fail(Code::kInternal, "CRIU's plugin sent a request out of order");
  }
  if (verdict) {
    link_->Accept();
  } else {
    link_->Refuse(verdict.error());
  }
  return verdict;
}

Status RestorePlugin::OnStopped(pid_t root, const Pids& pids, const NotifyHandler& handler) {
  Notification notification;
  notification.moment = Moment::kStopped;
  STASIS_ASSIGN(notification.pid, pids.from_criu(root));
  notification.let_run = [&](const std::vector<pid_t>& threads) -> Status {
    std::vector<pid_t> in_criu;
    for (const pid_t thread : threads) {
      STASIS_ASSIGN(const pid_t id, pids.to_criu({thread}));
      in_criu.push_back(id);
    }
    return link_->LetRun(in_criu, Deadline::In(kLetThreadsRun));
  };
  return handler(notification);
}

}  // namespace stasis::criu
