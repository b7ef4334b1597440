#include "criu/probe.h"

#include <linux/sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/rights.h"

namespace stasis::criu {
namespace {

constexpr char kSetupHint[] =
    "run `./run setup` in a checkout, or install your distribution's `criu` package if it is 4.1 "
    "or newer; STASIS_CRIU (programs.criu) selects a CRIU in another folder";
constexpr auto kVersionPatience = std::chrono::seconds(20);

struct Found {
  std::string path;
  Version version;
};

// A build tree is at most this many levels below its checkout, which has its own CRIU.
constexpr int kMostParents = 6;
constexpr char kCheckoutCriu[] = "/.cache/criu/sbin/criu";

std::vector<std::string> Candidates() {
  std::vector<std::string> paths;
  if (auto root = InstallRoot()) {
    paths.push_back(*root + "/libexec/criu");
    std::string folder = *root;
    for (int i = 0; i < kMostParents && !folder.empty(); ++i) {
      paths.push_back(folder + kCheckoutCriu);
      folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
    }
  }
  const char* path = ::secure_getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder.starts_with('/')) paths.push_back(folder + "/criu");
  }
  for (const char* folder : {"/usr/local/sbin", "/usr/sbin", "/sbin"}) {
    paths.push_back(std::string(folder) + "/criu");
  }
  return paths;
}

Result<Found> Ask(const std::string& path, const Deadline& deadline) {
  STASIS_ASSIGN(Session session, Session::Spawn(path));
  STASIS_ASSIGN(Version version, session.GetVersion(deadline));
  if (version < kLeastVersion) {
    return Fail(Code::kUnimplemented, Domain::kCriu, 0,
                path + " is CRIU " + ToString(version) + ", but 4.1 or newer is needed",
                kSetupHint);
  }
  return Found{path, version};
}

Result<Found> Locate(const std::string& named, const Deadline& deadline) {
  if (!named.empty()) {
    auto found = Annotate(Ask(named, deadline), "the CRIU of the configuration (" + named + ")");
    // A CRIU that could not be started for lack of resources may still be usable.
    if (found || found.error().code == Code::kResourceExhausted) return found;
    found.error().code = Code::kUnimplemented;
    found.error().hint = kSetupHint;
    return found;
  }
  std::string seen;
  for (const std::string& path : Candidates()) {
    if (::access(path.c_str(), X_OK) != 0) continue;
    auto found = Ask(path, deadline);
    if (found || found.error().code == Code::kResourceExhausted) return found;
    seen += (seen.empty() ? "" : "; ") + found.error().ToString();
  }
  return Fail(Code::kUnimplemented, Domain::kCriu, 0,
              seen.empty() ? "there is no CRIU on this machine" : "no CRIU is new enough: " + seen,
              kSetupHint);
}

constexpr char kRootHint[] =
    "run it as root (sudo); in a container, start the container with --privileged, or with "
    "--cap-add SYS_ADMIN --cap-add SYS_PTRACE --cap-add CHECKPOINT_RESTORE and without a seccomp "
    "profile";
constexpr char kUserHint[] =
    "use the daemon, or run it as root (sudo). Root can also grant the right to one command: "
    "setpriv --reset-env --reuid=YOU --regid=YOU --init-groups --inh-caps=+checkpoint_restore "
    "--ambient-caps=+checkpoint_restore stasis ... (docs/security.md)";

Finding ProbeCriu(const std::string& criu, const Deadline& deadline) {
  auto found = Locate(criu, deadline);
  if (found) return {"criu", true, "CRIU " + ToString(found->version) + " at " + found->path, ""};
  return {"criu", false, found.error().ToString(), found.error().hint};
}

Finding ProbePrivileges(const std::string&, const Deadline&) {
  Status status = CheckPrivileges();
  if (!status) return {"privileges", false, status.error().message, status.error().hint};
  return {"privileges", true, "this user may dump and restore processes", ""};
}

// Tries clone3 with set_tid and a free pid, because a restored process needs its old pid.
constexpr pid_t kFirstTriedPid = 301;  // the kernel reserves pids up to 300
Finding ProbeChosenPid(const std::string&, const Deadline&) {
  Finding finding{"chosen-pid", true, "a process can be started with a chosen pid", ""};
  pid_t free_pid = 0;
  for (pid_t pid = kFirstTriedPid; free_pid == 0; ++pid) {
    if (::kill(pid, 0) != 0 && errno == ESRCH) free_pid = pid;
  }
  clone_args args{};
  args.exit_signal = SIGCHLD;
  args.set_tid = reinterpret_cast<uint64_t>(&free_pid);
  args.set_tid_size = 1;
  pid_t child = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
  if (child == 0) ::_exit(0);
  if (child > 0) {
    ::waitpid(child, nullptr, 0);
  } else if (errno != EEXIST) {
    finding = {"chosen-pid", false,
               std::string("no process can be started with a chosen pid: ") + std::strerror(errno),
               kRootHint};
  }
  return finding;
}

Finding ProbePtrace(const std::string&, const Deadline&) {
  pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  Finding finding{"ptrace", true, "processes can be stopped and inspected (ptrace)", ""};
  if (child < 0 || ::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) != 0) {
    finding = {
        "ptrace", false,
        std::string("processes cannot be stopped and inspected (ptrace): ") + std::strerror(errno),
        kRootHint};
  }
  if (child > 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  return finding;
}

Finding ProbeCheck(const std::string& criu, const Deadline& deadline) {
  auto check = [&]() -> Status {
    STASIS_ASSIGN(Found found, Locate(criu, deadline));
    char folder[] = "/tmp/stasis-criu-check.XXXXXX";
    if (::mkdtemp(folder) == nullptr) return FailErrno(errno, "mkdtemp");
    auto session = Session::Spawn(found.path);
    Status status = session ? session->Check(std::string(folder) + "/criu.log", deadline)
                            : Fail(std::move(session).error());
    STASIS_TRY(RemoveTree(folder));
    return status;
  };
  Status status = check();
  if (status) return {"criu-check", true, "this kernel has all features that CRIU needs", ""};
  return {"criu-check", false, status.error().ToString(),
          status.error().hint.empty() ? "`criu check` lists what this kernel lacks"
                                      : status.error().hint};
}

constexpr Finding (*kProbes[])(const std::string&, const Deadline&) = {
    ProbeCriu, ProbePrivileges, ProbeChosenPid, ProbePtrace, ProbeCheck};

}  // namespace

Result<std::string> FindCriu(const std::string& named) {
  STASIS_ASSIGN(Found found, Locate(named, Deadline::In(kVersionPatience)));
  return found.path;
}

Result<std::string> FoundVersion(const std::string& named, const Deadline& deadline) {
  STASIS_ASSIGN(Found found, Locate(named, deadline));
  return ToString(found.version);
}

Status CheckPrivileges() {
  if (::geteuid() != 0) {
    if (!HasRight(Right::kCheckpointRestore)) {
      return Fail(Code::kPermissionDenied,
                  "user " + std::to_string(::geteuid()) +
                      " may not dump or restore here: CAP_CHECKPOINT_RESTORE is missing",
                  kUserHint);
    }
    if (!TracingIsRestricted() || HasRight(Right::kTrace)) return {};
    return Fail(Code::kPermissionDenied,
                "user " + std::to_string(::geteuid()) +
                    " may not stop programs here: kernel.yama.ptrace_scope requires "
                    "CAP_SYS_PTRACE",
                kUserHint);
  }
  if (HasRight(Right::kAdministrate)) return {};
  if (HasRight(Right::kCheckpointRestore) && HasRight(Right::kTrace)) return {};
  return Fail(Code::kPermissionDenied,
              "this user has neither CAP_SYS_ADMIN nor CAP_CHECKPOINT_RESTORE with CAP_SYS_PTRACE",
              kRootHint);
}

std::vector<Finding> ProbeMachine(const std::string& criu, const Deadline& deadline) {
  std::vector<Finding> findings;
  for (auto probe : kProbes) findings.push_back(probe(criu, deadline));
  return findings;
}

}  // namespace stasis::criu
