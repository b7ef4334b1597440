#include "api/worker_credentials.h"

#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "abi/driver_kinds.h"
#include "api/usage_error.h"
#include "base/file.h"
#include "base/rights.h"
#include "config/load.h"
#include "config/open_paths.h"
#include "process/control_group.h"

namespace stasis::api {
namespace {

constexpr uint32_t kKept[] = {CAP_CHECKPOINT_RESTORE, CAP_SYS_PTRACE};

Status KeepCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct have[2] = {};
  if (::syscall(SYS_capget, &header, have) != 0) return FailErrno(errno, "capget");
  __user_cap_data_struct keep[2] = {};
  for (uint32_t capability : kKept) {
    const uint32_t bit = 1u << (capability % 32);
    // A daemon that lacks one of these capabilities cannot pass it on.
    keep[capability / 32].permitted |= have[capability / 32].permitted & bit;
    keep[capability / 32].effective |= have[capability / 32].permitted & bit;
    // A process can get ambient capabilities only if they are inheritable, and CRIU is started with
    // the kept capabilities as ambient ones.
    keep[capability / 32].inheritable |= have[capability / 32].permitted & bit;
  }
  if (::syscall(SYS_capset, &header, keep) != 0) return FailErrno(errno, "capset");
  return {};
}

// Sets the environment of a fresh login. Keeps two kinds of the daemon's environment variables,
// which describe the machine: the path of the driver's library, and the software GPUs.
void SetEnvironment(uid_t uid) {
  std::vector<std::string> machine;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("LD_LIBRARY_PATH=") || abi::IsDriverVariable(text)) {
      machine.emplace_back(text);
    }
  }
  std::vector<char> buffer(16 << 10);
  passwd entry{};
  passwd* found = nullptr;
  (void)::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  ::clearenv();
  for (const std::string& text : machine) {
    const size_t sign = text.find('=');
    ::setenv(text.substr(0, sign).c_str(), text.c_str() + sign + 1, 1);
  }
  ::setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", 1);
  ::setenv("LANG", "C.UTF-8", 1);
  if (found == nullptr) return;
  ::setenv("HOME", found->pw_dir, 1);
  ::setenv("USER", found->pw_name, 1);
  ::setenv("LOGNAME", found->pw_name, 1);
  ::setenv("SHELL", found->pw_shell, 1);
}

Status Apply(const google::protobuf::Map<std::string, std::string>& texts, bool trusted,
             config::Settings& settings) {
  for (const config::Row& row : config::Rows()) {
    auto text = texts.find(row.key);
    if (text == texts.end() || row.trusted != trusted) continue;
    if (Status set = config::Set(row, text->second, config::From::kEnvironment, settings); !set) {
      Error error = std::move(set).error();
      error.message = fmt::format("{} {}", row.key, error.message);
      return Fail(std::move(error));
    }
  }
  return {};
}

Status CheckFolder(const std::string& path, bool may_be_empty) {
  if (may_be_empty && path.empty()) return {};
  const bool odd =
      std::any_of(path.begin(), path.end(), [](unsigned char c) { return c < ' ' || c == 127; });
  if (!path.empty() && path.front() == '/' && path.size() <= 4096 && !odd) return {};
  return FailUsage("a folder in the call's context is not an absolute path");
}

}  // namespace

Status JoinCallersCgroups(const v1::WorkerRequest& request) {
  for (const std::string& folder : request.control_groups()) {
    if (Status joined = process::JoinControlGroup(folder); !joined) {
      Error error = std::move(joined).error();
      error.hint = "--no-daemon starts the program without the daemon";
      return Fail(std::move(error).WithContext("start the program in the caller's control group"));
    }
  }
  return {};
}

Status TakeCredentials(const v1::WorkerRequest& request) {
  if (!request.has_rights()) return {};
  const auto& rights = request.rights();
  std::vector<gid_t> groups(rights.groups().begin(), rights.groups().end());
  if (::prctl(PR_SET_KEEPCAPS, 1L) != 0) return FailErrno(errno, "prctl");
  if (::setgroups(groups.size(), groups.data()) != 0) return FailErrno(errno, "setgroups");
  if (::setresgid(rights.gid(), rights.gid(), rights.gid()) != 0) {
    return FailErrno(errno, "setresgid");
  }
  if (::setresuid(rights.uid(), rights.uid(), rights.uid()) != 0) {
    return FailErrno(errno, "setresuid");
  }
  STASIS_TRY(KeepCapabilities());
  HoldRights();
  // CRIU opens its folders through /proc/PID/fd of this process, so this process must be dumpable.
  // The user's other processes still cannot trace it, because a tracer needs all capabilities of
  // the process. Without capabilities this process must not be dumpable, because the user's
  // processes could then take descriptors that belong to the daemon.
  if (HasRight(Right::kCheckpointRestore) && ::prctl(PR_SET_DUMPABLE, 1L) != 0) {
    return FailErrno(errno, "prctl");
  }
  SetEnvironment(rights.uid());
  if (::chdir("/") != 0) return FailErrno(errno, "chdir");
  return {};
}

Result<Call> MakeCall(const v1::WorkerRequest& request) {
  Call call;
  const v1::CallContext& context = request.context();
  if (!request.has_context()) {
    STASIS_ASSIGN(config::Config config, config::Load());
    call.settings = config.settings;
  }
  STASIS_TRY(Apply(context.settings(), /*trusted=*/false, call.settings));
  // A caller with the daemon's own credentials may choose the trusted settings too.
  if (!request.has_rights() && request.has_context()) {
    STASIS_TRY(Apply(context.settings(), /*trusted=*/true, call.settings));
  } else {
    STASIS_TRY(Apply(request.daemon_settings(), /*trusted=*/true, call.settings));
  }
  if (!context.has_folders()) {
    STASIS_ASSIGN(call.paths, config::OpenPaths(call.settings));
    return call;
  }
  const auto& folders = context.folders();
  for (const auto& path : {folders.run(), folders.data()}) STASIS_TRY(CheckFolder(path, false));
  for (const auto& path : {folders.image_store(), folders.arena()}) {
    STASIS_TRY(CheckFolder(path, true));
  }
  call.paths = {folders.run(), folders.data(), folders.image_store(), folders.arena()};
  STASIS_TRY(config::MakeFolders(call.paths));
  return call;
}

google::protobuf::Map<std::string, std::string> SettingsText(const config::Settings& settings,
                                                             bool trusted) {
  google::protobuf::Map<std::string, std::string> texts;
  for (const config::Row& row : config::Rows()) {
    if (row.trusted != trusted) continue;
    texts[row.key] = config::Text(row, settings);
  }
  return texts;
}

v1::WorkerRequest OwnWork(const config::Settings& settings) {
  v1::WorkerRequest ours;
  ours.set_caller(::geteuid());
  ours.set_log_level(settings.daemon_log_level);
  *ours.mutable_daemon_settings() = SettingsText(settings, /*trusted=*/true);
  return ours;
}

v1::CallContext::Folders FoldersOf(const Paths& paths) {
  v1::CallContext::Folders folders;
  folders.set_run(paths.run);
  folders.set_data(paths.data);
  folders.set_image_store(paths.image_store);
  folders.set_arena(paths.arena);
  return folders;
}

}  // namespace stasis::api
