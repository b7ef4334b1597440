#include "checks/collisions.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "base/bounded.h"
#include "base/checksum.h"
#include "base/file.h"
#include "checks/readable.h"
#include "criu/unix_peers.h"
#include "process/search.h"

namespace stasis::checks {
namespace {

using process::HostPid;

constexpr char kGuide[] =
    "Copies of one program cannot share it: docs/guides/clones.md says what can be done.";

tl::unexpected<Error> HeldBy(const std::string& what, const std::string& holder) {
  return Fail(Code::kAlreadyExists,
              fmt::format("{} is in use by {}", what,
                          holder.empty() ? "a process that is not visible here" : holder),
              std::string("End that process, then restore again. ") + kGuide);
}

std::string PortText(const char* protocol, const criu::InetPort& port) {
  return fmt::format("the program's {} {}", protocol, criu::ToString(port));
}

std::string SocketText(const criu::UnixName& socket) {
  return "the program's Unix socket " + (socket.path.empty() ? socket.name : socket.path);
}

std::string FileText(const std::string& path) {
  return "the file " + path + ", which the program writes,";
}

// The text of an address in /proc/net/udp: one or four words of memory, each as a hexadecimal
// number.
criu::TcpAddress ParseAddress(int family, const std::string& hex) {
  uint32_t words[4] = {};
  for (size_t i = 0; i < 4 && 8 * (i + 1) <= hex.size(); ++i) {
    words[i] = static_cast<uint32_t>(std::strtoul(hex.substr(8 * i, 8).c_str(), nullptr, 16));
  }
  return criu::ToTcpAddress(family, words);
}

// Returns the sockets, as link targets in /proc/PID/fd, that occupy the UDP port.
std::set<std::string> UdpSockets(const criu::InetPort& port) {
  std::set<std::string> found;
  for (const auto& [family, table] : {std::pair(AF_INET, "udp"), std::pair(AF_INET6, "udp6")}) {
    auto text = ReadFile(std::string("/proc/thread-self/net/") + table);
    if (!text) continue;  // no IPv6
    std::istringstream lines(*text);
    std::string line;
    std::getline(lines, line);  // the names of the columns
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string slot, local, word, inode;
      words >> slot >> local;
      for (int i = 0; i < 7; ++i) words >> word;
      const size_t colon = local.find(':');
      if (!(words >> inode) || colon == std::string::npos) continue;
      if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) != port.port) continue;
      if (!criu::Overlap(port, family, ParseAddress(family, local.substr(0, colon)))) continue;
      found.insert("socket:[" + inode + "]");
    }
  }
  return found;
}

// A trial bind, as in the phase `ports`, does not find a program that CRIU has restored: the kernel
// remembers that its port was bound with SO_REUSEPORT, although CRIU has cleared that option since.
Status CheckListeners(const std::vector<criu::InetPort>& ports) {
  if (ports.empty()) return {};
  auto kernel = criu::TcpSockets::Open();
  if (!kernel) return {};
  for (const auto& port : ports) {
    if (port.shared) continue;
    auto listed = kernel->WithLocalPort(port.port);
    if (!listed) return {};  // the phase `ports` says why
    std::set<std::string> listeners;
    for (const auto& socket : *listed) {
      if (socket.state != TCP_LISTEN || !criu::Overlap(port, socket.family, socket.address)) {
        continue;
      }
      listeners.insert(fmt::format("socket:[{}]", socket.inode));
    }
    if (!listeners.empty()) return HeldBy(PortText("port", port), criu::HolderOf(listeners));
  }
  return {};
}

bool IsSocket(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode);
}

Status CheckUnixSockets(const std::vector<criu::UnixName>& names) {
  if (names.empty()) return {};
  STASIS_ASSIGN(const auto here, criu::UnixSockets::Read({::getpid()}));
  for (const auto& name : names) {
    std::set<std::string> sockets;
    for (uint64_t inode : here.WithName(name.name)) {
      sockets.insert(fmt::format("socket:[{}]", inode));
    }
    // A socket whose file was removed is not in the way.
    if (sockets.empty() || (!name.path.empty() && !IsSocket(name.path))) continue;
    return HeldBy(SocketText(name), criu::HolderOf(sockets));
  }
  return {};
}

using Identity = std::pair<dev_t, ino_t>;

// Returns the file that process `pid` has open or mapped for writing, or null.
const std::string* WrittenBy(HostPid pid, const std::map<Identity, std::string>& files) {
  const std::string folder = fmt::format("/proc/{}", pid.value);
  std::set<std::string> paths;
  std::set<uint64_t> inodes;
  for (const auto& [identity, path] : files) {
    paths.insert(path);
    inodes.insert(identity.second);
  }
  for (const auto& open : process::ReadOpenFiles(pid).value_or(std::vector<process::OpenFile>())) {
    if (!paths.contains(open.target)) continue;
    const std::string number = std::to_string(open.fd);
    auto info = ReadFile(folder + "/fdinfo/" + number);
    const size_t flags = info ? info->find("flags:") : std::string::npos;
    if (flags == std::string::npos) continue;
    if ((std::strtoul(info->c_str() + flags + 6, nullptr, 8) & O_ACCMODE) == O_RDONLY) continue;
    struct stat st;
    if (::stat((folder + "/fd/" + number).c_str(), &st) != 0) continue;
    auto file = files.find({st.st_dev, st.st_ino});
    if (file != files.end()) return &file->second;
  }
  auto maps = ReadFile(folder + "/maps");
  if (!maps) return nullptr;
  std::istringstream lines(*maps);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string range, perms, offset, device, path;
    uint64_t inode = 0;
    if (!(words >> range >> perms >> offset >> device >> inode) || !inodes.contains(inode))
      continue;
    std::getline(words >> std::ws, path);
    // Some file systems report another device in stat than here, so the path decides.
    if (!perms.starts_with("rw") || !perms.ends_with("s") || !paths.contains(path)) continue;
    for (const auto& [identity, name] : files) {
      if (name == path && identity.second == inode) return &name;
    }
  }
  return nullptr;
}

Result<std::string> LookForWriters(const std::vector<std::string>& paths, const NoteStep& note) {
  std::map<Identity, std::string> files;
  std::string answer;  // a line for each file: identity and path
  for (const std::string& path : paths) {
    note("inspect " + path + ", which the program writes");
    struct stat st;
    // A new line cannot be in the answer, and no program is written for it.
    if (::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
    if (path.find('\n') != std::string::npos) continue;
    files.emplace(Identity{st.st_dev, st.st_ino}, path);
    answer += fmt::format("{}:{}:{} {}\n", major(st.st_dev), minor(st.st_dev), st.st_ino, path);
  }
  if (files.empty()) return answer;
  STASIS_ASSIGN(const auto pids, process::ListProcesses());
  for (HostPid pid : pids) {
    note(fmt::format("read which files process {} writes", pid.value));
    const std::string* path = WrittenBy(pid, files);
    if (path == nullptr) continue;
    auto stat = process::ReadStat(pid);
    if (!stat) continue;
    Error error =
        HeldBy(FileText(*path), fmt::format("process {} ({})", pid.value, stat->comm)).value();
    error.hint += " --share-files lets both write it.";
    return Fail(std::move(error));
  }
  return answer;
}

}  // namespace

Result<NameClaims> NameClaims::Open(const std::string& path) {
  STASIS_ASSIGN(UniqueFd fd, stasis::Open(path, O_RDWR | O_CREAT, 0600));
  return NameClaims(std::move(fd));
}

// Each name is one byte of the file, at the offset of its hash; the file itself stays empty. Such a
// lock ends with the process, is not inherited, and the kernel reports its owner.
Status NameClaims::ClaimOne(const std::string& key, const std::string& what) const {
  uint64_t hash = 0;
  const Id128 sum = Checksum(key);
  std::memcpy(&hash, sum.bytes.data(), sizeof hash);
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(hash >> 2);
  lock.l_len = 1;
  struct flock other = lock;
  if (::fcntl(fd_.get(), F_SETLK, &lock) == 0) return {};
  if (errno != EACCES && errno != EAGAIN) return FailErrno(errno, "claim " + what);
  const bool known =
      ::fcntl(fd_.get(), F_GETLK, &other) == 0 && other.l_type != F_UNLCK && other.l_pid > 0;
  return Fail(Code::kAlreadyExists,
              fmt::format("another restore{} is taking {}",
                          known ? fmt::format(", process {},", other.l_pid) : "", what),
              kGuide);
}

Status NameClaims::Claim(const criu::RestoredNames& names) const {
  STASIS_ASSIGN(const uint64_t network, process::ReadNamespace({::getpid()}, "net"));
  auto claim_ports = [&](const char* protocol, const auto& ports) -> Status {
    for (const auto& port : ports) {
      if (port.shared) continue;
      STASIS_TRY(ClaimOne(fmt::format("{} {} {}", protocol, network, criu::ToString(port)),
                          PortText(protocol, port)));
    }
    return {};
  };
  STASIS_TRY(claim_ports("port", names.tcp));
  STASIS_TRY(claim_ports("UDP port", names.udp));
  for (const auto& socket : names.unix_sockets) {
    const std::string place = socket.path.empty() ? std::to_string(network) : "";
    STASIS_TRY(ClaimOne(
        fmt::format("socket {} {}", place, socket.path.empty() ? socket.name : socket.path),
        SocketText(socket)));
  }
  return {};
}

Status NameClaims::ClaimFile(const std::string& identity, const std::string& file) const {
  return ClaimOne("file " + identity, FileText(file));
}

Status CheckSocketNamesFree(const criu::RestoredNames& names) {
  STASIS_TRY(CheckListeners(names.tcp));
  for (const auto& port : names.udp) {
    if (port.shared) continue;
    const auto sockets = UdpSockets(port);
    if (!sockets.empty()) return HeldBy(PortText("UDP port", port), criu::HolderOf(sockets));
  }
  return CheckUnixSockets(names.unix_sockets);
}

Result<std::vector<WrittenFile>> CheckFilesNotWritten(const std::vector<std::string>& paths,
                                                      const Deadline& deadline) {
  std::vector<WrittenFile> files;
  if (paths.empty()) return files;
  BoundedOptions options;
  options.cancelled = ReadingCancelled();
  auto look = [&](const NoteStep& note) { return LookForWriters(paths, note); };
  STASIS_ASSIGN(const std::string answer, AskBounded(look, deadline, options));
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    files.push_back({line.substr(space + 1), line.substr(0, space)});
  }
  return files;
}

}  // namespace stasis::checks
