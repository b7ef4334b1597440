#include "process/identity.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace stasis::process {
namespace {

Status CheckThread(const Credentials& thread, const Caller& caller) {
  auto no = [&](const std::string& what) {
    return Fail(Code::kPermissionDenied, what,
                "run it as that user, or as root: programs of several users, or with more rights "
                "than yours, need root");
  };
  for (uid_t uid : thread.uid) {
    if (uid != caller.uid) {
      return no(fmt::format("belongs to user {}, you are user {}", uid, caller.uid));
    }
  }
  for (gid_t gid : thread.gid) {
    if (!caller.groups.contains(gid)) {
      return no(fmt::format("has group {}, and you do not", gid));
    }
  }
  for (gid_t gid : thread.groups) {
    if (!caller.groups.contains(gid))
      return no(fmt::format("is in group {}, and you are not", gid));
  }
  if (thread.capabilities == 0) return {};
  return Fail(Code::kPermissionDenied, fmt::format("has capabilities ({:x})", thread.capabilities),
              "run it as root; `stasis run` starts programs without capabilities");
}

Status CheckPlace(HostPid pid, const Caller& caller) {
  struct stat st;
  // Checks the owner of a file in the directory: the directory itself always has the process's own
  // user id.
  const std::string file = "/proc/" + ToString(pid) + "/status";
  if (::stat(file.c_str(), &st) != 0) return FailErrno(errno, "look at " + file);
  if (st.st_uid != caller.uid) {
    return Fail(Code::kPermissionDenied,
                "may not be inspected: it has dropped rights, or runs a file that you may not read",
                "run it as root");
  }
  STASIS_ASSIGN(uint64_t its, ReadNamespace(pid, "user"));
  STASIS_ASSIGN(uint64_t ours, ReadNamespace({::getpid()}, "user"));
  if (its == ours) return {};
  return Fail(Code::kPermissionDenied, "is in another user namespace", "run it as root");
}

}  // namespace

Status CheckOwn(const Stat& process, const Caller& caller) {
  if (caller.root()) return {};
  auto look = [&]() -> Status {
    STASIS_ASSIGN(UniqueFd pidfd, OpenPidfd(process.id));
    STASIS_ASSIGN(auto threads, ReadThreads(process.id.pid));
    for (pid_t thread : threads) {
      auto credentials = ReadCredentials({thread});
      // A thread may have ended. The check of the pidfd below covers the whole process.
      if (!credentials && credentials.error().code == Code::kNotFound) continue;
      if (!credentials) return Fail(std::move(credentials).error());
      STASIS_TRY(CheckThread(*credentials, caller));
    }
    STASIS_ASSIGN(Stat now, ReadStat(process.id.pid));
    if (now.id != process.id) {
      return Fail(Code::kNotFound, Domain::kProcess, 0, "it has ended");
    }
    // A zombie has no other state to check.
    if (now.state == 'Z' || now.state == 'X') return {};
    STASIS_TRY(CheckPlace(process.id.pid, caller));
    return OpenPidfd(process.id).transform([](const UniqueFd&) {});
  };
  Status own = look();
  if (own || own.error().code != Code::kPermissionDenied) return own;
  Error error = std::move(own).error();
  error.message =
      fmt::format("process {} ({}) {}", process.id.pid.value, process.comm, error.message);
  return Fail(std::move(error));
}

}  // namespace stasis::process
