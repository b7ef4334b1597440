#include "criu/fd_scan.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <string_view>

#include "base/file.h"
#include "base/stat.h"

namespace stasis::criu {
namespace {

constexpr std::string_view kDeleted = " (deleted)";

std::string ProcPath(process::HostPid pid, const char* folder, int fd) {
  return "/proc/" + process::ToString(pid) + "/" + folder + "/" + std::to_string(fd);
}

// The lines of fdinfo are "pos:\t0", "flags:\t02100002" (octal), "mnt_id:\t15", "lock:\t1: FLOCK
// ADVISORY ...".
void ParseFdInfo(const std::string& text, ScannedFd* found) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string_view key = std::string_view(line).substr(0, colon);
    size_t value_at = line.find_first_not_of(" \t", colon + 1);
    std::string value = value_at == std::string::npos ? "" : line.substr(value_at);
    if (key == "pos") {
      found->position = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "flags") {
      found->flags = static_cast<int>(std::strtoul(value.c_str(), nullptr, 8));
    } else if (key == "lock") {
      found->locks.push_back(std::move(value));
    }
  }
}

}  // namespace

bool ScannedFd::Readable() const { return (flags & O_ACCMODE) != O_WRONLY; }
bool ScannedFd::Writable() const { return (flags & O_ACCMODE) != O_RDONLY; }
bool ScannedFd::Deleted() const { return target.ends_with(kDeleted); }
std::string ScannedFd::Path() const {
  return Deleted() ? target.substr(0, target.size() - kDeleted.size()) : target;
}

Result<std::vector<ScannedFd>> ScanFds(const process::ProcessTree& tree) {
  std::vector<ScannedFd> all;
  for (const process::Stat& member : tree.members) {
    if (member.state == 'Z' || member.state == 'X') continue;
    process::HostPid pid = member.id.pid;
    auto files = process::ReadOpenFiles(pid);
    if (!files) {
      if (!process::IsAlive(member.id)) continue;
      return Fail(std::move(
          files.error().WithContext("read the open files of " + Describe(pid, member.comm))));
    }
    for (process::OpenFile& file : *files) {
      ScannedFd found;
      found.pid = pid;
      found.comm = member.comm;
      found.fd = file.fd;
      found.target = std::move(file.target);
      auto info = ReadFile(ProcPath(pid, "fdinfo", file.fd));
      if (!info || !StatWithoutSync(ProcPath(pid, "fd", file.fd), &found.info)) continue;
      ParseFdInfo(*info, &found);
      all.push_back(std::move(found));
    }
  }
  return all;
}

Result<UniqueFd> TakeFd(process::HostPid pid, int fd) {
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid.value, 0)));
  if (!process) return FailErrno(errno, "pidfd_open of process " + process::ToString(pid));
  UniqueFd taken(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
  if (!taken) return FailErrno(errno, "pidfd_getfd from process " + process::ToString(pid));
  return taken;
}

std::string Describe(process::HostPid pid, const std::string& comm) {
  return "process " + process::ToString(pid) + " (" + comm + ")";
}

}  // namespace stasis::criu
