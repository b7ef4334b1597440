#include "criu/stdio.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>

#include "base/file.h"
#include "base/own_path.h"
#include "criu/fd_scan.h"
#include "criu/unix_peers.h"

namespace stasis::criu {
namespace {

constexpr int kLastStandardFd = 2;

struct Scan {
  const std::vector<ScannedFd>& fds;
  const UnixSockets& unix_sockets;
  const FileId& log;
};

std::string Direction(const ScannedFd& fd) {
  if (fd.Readable() && fd.Writable()) return "both";
  return fd.Readable() ? "in" : "out";
}

// Returns true if a process outside of the tree holds the other end of this pipe: no process of the
// tree does, and the kernel does not report it as closed.
bool LeadsOut(const Scan& scan, const ScannedFd& pipe) {
  if (pipe.Readable() && pipe.Writable()) return false;
  for (const ScannedFd& other : scan.fds) {
    if (other.target != pipe.target) continue;
    if (pipe.Readable() ? other.Writable() : other.Readable()) return false;
  }
  auto taken = TakeFd(pipe.pid, pipe.fd);
  if (!taken) return true;
  pollfd state{taken->get(), 0, 0};
  if (::poll(&state, 1, 0) < 0) return true;
  return (state.revents & (pipe.Readable() ? POLLHUP : POLLERR)) == 0;
}

bool IsTerminal(const ScannedFd& fd) {
  // The major numbers that CRIU treats as terminals: tty, /dev/tty and /dev/console, pts.
  unsigned number = major(fd.info.st_rdev);
  return S_ISCHR(fd.info.st_mode) &&
         (number == 4 || number == 5 || (number >= 136 && number <= 143));
}

// Returns true if the tree also holds the master side of the terminal, in which case CRIU restores
// both sides.
bool HasMaster(const Scan& scan, const ScannedFd& terminal) {
  for (const ScannedFd& other : scan.fds) {
    if (!other.target.ends_with("/ptmx")) continue;
    auto master = TakeFd(other.pid, other.fd);
    int index = -1;
    if (master && ::ioctl(master->get(), TIOCGPTN, &index) == 0 &&
        terminal.target.ends_with("/" + std::to_string(index))) {
      return true;
    }
  }
  return false;
}

// Returns true if the descriptor is of this kind and leads out of the tree. Sets `key` in the
// ExternalFd in that case.
using Classify = bool (*)(const Scan&, const ScannedFd&, ExternalFd*);

bool AsPipe(const Scan& scan, const ScannedFd& fd, ExternalFd* external) {
  if (!fd.target.starts_with("pipe:[") || !LeadsOut(scan, fd)) return false;
  external->key = fd.target;
  return true;
}

bool IsLog(const Scan& scan, const ScannedFd& fd) {
  return S_ISREG(fd.info.st_mode) && FileId::Of(fd.info) == scan.log;
}

// Returns true if a process of the tree also reads the file. CRIU substitutes one descriptor for
// all descriptors with the same name, and that one is write-only.
bool IsRead(const Scan& scan, const ScannedFd& fd) {
  return std::any_of(scan.fds.begin(), scan.fds.end(), [&](const ScannedFd& other) {
    return other.Readable() && FileId::Of(other.info) == FileId::Of(fd.info);
  });
}

bool AsJobLog(const Scan& scan, const ScannedFd& fd, ExternalFd* external) {
  if (!IsLog(scan, fd) || !fd.target.starts_with('/') || IsRead(scan, fd)) return false;
  external->path = fd.Path();
  external->key = external->path.substr(1);
  return true;
}

// Matches a file to which the program only appends. CRIU would require the file's size at the dump,
// so a restore reopens the file and gives it to CRIU as a replacement. A program that seeks in its
// output needs the same, unchanged file, which is left to CRIU.
bool AsFile(const Scan& scan, const ScannedFd& fd, ExternalFd* external) {
  if (!S_ISREG(fd.info.st_mode) || !fd.Writable() || !fd.target.starts_with('/')) return false;
  if (fd.Deleted()) return false;  // CRIU stores its content
  if (fd.fd == STDIN_FILENO || (!fd.Readable() && IsRead(scan, fd))) return false;
  bool at_end = fd.position >= static_cast<uint64_t>(fd.info.st_size);
  if (!at_end && (fd.flags & O_APPEND) == 0) return false;
  external->path = fd.Path();
  external->key = external->path.substr(1);
  return true;
}

bool AsTerminal(const Scan& scan, const ScannedFd& fd, ExternalFd* external) {
  if (!IsTerminal(fd) || HasMaster(scan, fd)) return false;
  char key[64];
  std::snprintf(key, sizeof key, "tty[%lx:%lx]", fd.info.st_rdev, fd.info.st_dev);
  external->key = key;
  external->path = fd.target;
  return true;
}

bool AsSocket(const Scan& scan, const ScannedFd& fd, ExternalFd* external) {
  if (!fd.target.starts_with("socket:[")) return false;
  const UnixSocket* socket = scan.unix_sockets.Find(fd.info.st_ino);
  if (socket == nullptr || !socket->stream || socket->peer == 0) return false;
  for (const ScannedFd& other : scan.fds) {
    if (other.info.st_ino == socket->peer && S_ISSOCK(other.info.st_mode)) return false;
  }
  external->key = fd.target;
  return true;
}

void NoteReader(const Scan& scan, const ScannedFd& fd, StdioPlan* plan) {
  if (!IsLog(scan, fd) || !fd.Readable()) return;
  plan->notes.push_back(Describe(fd.pid, fd.comm) + " reads the job's log (fd " +
                        std::to_string(fd.fd) + "); a restore needs " + fd.Path() +
                        " unchanged, and the output continues in that file.");
}

void NotePipe(const Scan& scan, const ScannedFd& fd, StdioPlan* plan) {
  if (!fd.target.starts_with("pipe:[") || !LeadsOut(scan, fd)) return;
  plan->notes.push_back(Describe(fd.pid, fd.comm) + " has a pipe to another program (fd " +
                        std::to_string(fd.fd) +
                        "); after a restore the other end of the pipe is closed.");
}

struct Row {
  const char* kind;
  Classify classify;
};
constexpr Row kKinds[] = {{"log", AsJobLog},
                          {"pipe", AsPipe},
                          {"file", AsFile},
                          {"tty", AsTerminal},
                          {"socket", AsSocket}};

}  // namespace

void StdioPlan::ApplyTo(Options& options) const {
  options.shell_job |= shell_job;
  for (const ExternalFd& external : externals) {
    if (external.kind == "tty") options.external.push_back(external.key);
    if (external.kind == "socket") {
      options.external.push_back("unix" + external.key.substr(external.key.find('[')));
    }
  }
}

Result<StdioPlan> PlanStdio(const process::ProcessTree& tree, const FileId& log) {
  STASIS_ASSIGN(auto fds, ScanFds(tree));
  STASIS_ASSIGN(UnixSockets unix_sockets, UnixSockets::Read(tree.root().id.pid));
  Scan scan{fds, unix_sockets, log};
  StdioPlan plan;
  plan.shell_job = tree.root().session != tree.root().id.pid.value;
  std::set<std::string> keys;
  for (const ScannedFd& fd : fds) {
    // Terminals and logs are replaced under any descriptor number, other files only under 0 to 2.
    // For other numbers, CRIU restores the program's end of a pipe, and the preflight checks
    // sockets.
    if (fd.fd > kLastStandardFd && !IsTerminal(fd) && !IsLog(scan, fd)) {
      NotePipe(scan, fd, &plan);
      continue;
    }
    NoteReader(scan, fd, &plan);
    for (const Row& row : kKinds) {
      ExternalFd external;
      if (!row.classify(scan, fd, &external)) continue;
      external.kind = row.kind;
      external.pid = fd.pid;
      external.fd = fd.fd;
      external.direction = Direction(fd);
      if (keys.insert(external.key).second) plan.externals.push_back(std::move(external));
      break;
    }
  }
  return plan;
}

namespace {

// Assigns descriptor numbers of one kind.
class Supply {
 public:
  explicit Supply(std::vector<int> numbers) : numbers_(std::move(numbers)) {}
  bool empty() const { return numbers_.empty(); }
  int Take() {
    if (numbers_.empty()) return -1;
    int number = numbers_.front();
    numbers_.erase(numbers_.begin());
    return number;
  }

 private:
  std::vector<int> numbers_;
};

Status ReopenLog(const ExternalFd& external, int number, InheritPlan* plan) {
  int access = external.direction == "both" ? O_RDWR : O_WRONLY;
  bool gone = !PathExists(external.path);
  // Does not follow another user's symbolic link (OpenOwn), because the recorded path contained
  // none.
  auto file = OpenOwn(external.path, access | O_APPEND | O_NOCTTY | (gone ? O_CREAT : 0), 0644);
  if (!file) {
    Error error = std::move(file).error().WithContext("reopen the program's log");
    if (error.raw == EMLINK) {
      error.hint = "remove the other hard links of the file, or choose another file with --log";
    } else if (error.hint.empty()) {
      error.hint = "create the log's folder, or choose another file with --log";
    }
    return Fail(std::move(error));
  }
  if (gone)
    plan->notes.push_back("The log " + external.path + " was missing and has been created again.");
  plan->inherit.push_back({external.key, number});
  plan->files.emplace(number, std::move(*file));
  return {};
}

}  // namespace

Result<InheritPlan> PlanInherit(const std::vector<ExternalFd>& externals,
                                const Replacements& replacements) {
  InheritPlan plan;
  Supply output(replacements.output), input(replacements.input), null(replacements.null),
      terminal(replacements.terminal);
  int next_file = replacements.first_free;
  for (const ExternalFd& external : externals) {
    if (external.kind == "file" && !replacements.all_to_log) {
      STASIS_TRY(ReopenLog(external, next_file++, &plan));
      continue;
    }
    int number = -1;
    if (external.kind == "tty") {
      if (terminal.empty()) {
        return Fail(Code::kFailedPrecondition,
                    "the program had a terminal (" + external.path + "), but none is available");
      }
      number = terminal.Take();
    } else if (external.direction == "in") {
      number = input.Take();
      if (number < 0 && external.kind == "pipe") continue;  // CRIU makes a closed pipe
    } else {
      number = output.Take();
    }
    if (number < 0) {
      number = null.Take();
      plan.notes.push_back("Output of the program on fd " + std::to_string(external.fd) + " (" +
                           external.kind + ") is discarded: no replacement was given.");
    }
    if (number < 0) {
      return Fail(Code::kResourceExhausted, "no descriptor is available as a replacement for " +
                                                external.key + " (fd " +
                                                std::to_string(external.fd) + ")");
    }
    plan.inherit.push_back({external.key, number});
  }
  return plan;
}

Status AppendOnly(const process::ProcessTree& tree, const FileId& log) {
  STASIS_ASSIGN(auto fds, ScanFds(tree));
  for (const ScannedFd& fd : fds) {
    if (!S_ISREG(fd.info.st_mode) || FileId::Of(fd.info) != log) continue;
    if (!fd.Writable() || (fd.flags & O_APPEND) != 0) continue;
    // TakeFd() shares the open file description, so the flag also applies to the program.
    STASIS_ASSIGN(UniqueFd taken, TakeFd(fd.pid, fd.fd));
    int flags = ::fcntl(taken.get(), F_GETFL);
    // For a pipe O_DIRECT means packet mode, but for a file it bypasses the cache.
    if (flags < 0 || ::fcntl(taken.get(), F_SETFL, (flags | O_APPEND) & ~O_DIRECT) != 0) {
      return FailErrno(errno, "make " + Describe(fd.pid, fd.comm) + " append to its log");
    }
  }
  return {};
}

}  // namespace stasis::criu
