#include "config/open_paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "base/file.h"

namespace stasis::config {
namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<Paths> LocateState(const Settings& settings) {
  if (!settings.state_dir.empty()) {
    return Paths{settings.state_dir + "/run", settings.state_dir + "/data"};
  }
  if (::geteuid() == 0) return Paths{"/run/stasis", "/var/lib/stasis"};
  Paths paths;
  auto state = Env("XDG_STATE_HOME"), home = Env("HOME");
  if (state.empty() && !home.empty()) state = home + "/.local/state";
  if (state.empty()) {
    return Fail(Code::kFailedPrecondition, "there is no folder to keep jobs and images in",
                "set HOME, XDG_STATE_HOME or STASIS_STATE_DIR (folders.state)");
  }
  paths.data = state + "/stasis";
  // Do not use $XDG_RUNTIME_DIR: it is removed at logout and unset under cron, but all commands of
  // a user must share one journal.
  paths.run = paths.data + "/run";
  return paths;
}

Result<Paths> Locate(const Settings& settings) {
  STASIS_ASSIGN(Paths paths, LocateState(settings));
  if (settings.run_dir.empty()) return paths;
  paths.run = settings.run_dir;
  constexpr std::string_view kUser = "%u";
  if (const size_t at = paths.run.find(kUser); at != paths.run.npos) {
    paths.run.replace(at, kUser.size(), std::to_string(::geteuid()));
  }
  return paths;
}

// A folder of all users, such as /var/tmp, may contain one of this name that another user has made.
// Nothing may be written to it: its owner could read it, change it or lead it elsewhere by a link.
Status MakeOwnFolder(const std::string& path) {
  const Status made = MakeDirs(path, 0700);
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return made ? FailErrno(errno, "stat " + path) : made;
  const bool is_own = info.st_uid == ::geteuid();
  if (S_ISDIR(info.st_mode) && is_own && (info.st_mode & 022) == 0) return {};
  if (is_own) {
    return Fail(Code::kPermissionDenied,
                path + " is not a folder of this user alone, and cannot hold journals",
                "remove it, or set folders.run to another folder");
  }
  return Fail(Code::kPermissionDenied,
              path + " belongs to user " + std::to_string(info.st_uid) +
                  ", who has made it before you, and cannot hold your journals",
              "ask the administrator to remove it, or set folders.run (STASIS_RUN_DIR) to a folder "
              "that only you can write to");
}

constexpr char kSocketOfRoot[] = "/run/stasisd/stasisd.sock";

}  // namespace

Result<std::vector<std::string>> DaemonSockets(const Settings& settings) {
  if (!settings.daemon_socket.empty()) return std::vector{settings.daemon_socket};
  const bool all_default = settings.state_dir.empty();
  if (all_default && ::geteuid() == 0) return std::vector<std::string>{kSocketOfRoot};
  STASIS_ASSIGN(Paths paths, Locate(settings));
  std::vector<std::string> sockets = {paths.run + "/stasisd.sock"};
  if (all_default) sockets.emplace_back(kSocketOfRoot);
  return sockets;
}

Result<std::string> DaemonSocket(const Settings& settings) {
  STASIS_ASSIGN(auto sockets, DaemonSockets(settings));
  return sockets.front();
}

Status MakeFolders(const Paths& paths) {
  // Mode 0711: programs of any user load the agent from below this directory, but must not list it.
  // Everything in it except the agent has mode 0700.
  STASIS_TRY(MakeDirs(paths.data, 0711));
  for (const auto& dir : {paths.run, paths.journal(), paths.jobs(), paths.images()}) {
    STASIS_TRY(MakeDirs(dir, 0700));
  }
  return {};
}

Result<Paths> OpenPaths(const Settings& settings) {
  STASIS_ASSIGN(Paths paths, Locate(settings));
  paths.image_store = settings.image_dir;
  paths.arena = settings.arena_dir;
  if (!settings.run_dir.empty()) STASIS_TRY(MakeOwnFolder(paths.run));
  STASIS_TRY(MakeFolders(paths));
  return paths;
}

}  // namespace stasis::config
