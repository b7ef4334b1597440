#include "criu/preflight.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_set>

#include "abi/driver_kinds.h"
#include "base/file.h"
#include "criu/fd_scan.h"
#include "criu/unix_peers.h"
#include "process/shared_server.h"

namespace stasis::criu {
namespace {

// Returns true for files that a GPU driver closes itself at its checkpoint. If such a file stays
// open, CRIU reports it.
bool IsDriverFile(std::string_view target) { return abi::KindOfDeviceFile(target) != nullptr; }

// Returns true for other files that the plugin for AMD GPUs saves. Programs without HIP have such
// files too, and get no plugin.
bool IsPluginFile(std::string_view target, const Options& options) {
  return !options.plugins.empty() && target.starts_with("/dev/dri/renderD");
}

struct Search {
  const process::ProcessTree& tree;
  const Options& options;
  const StdioPlan& stdio;
  const UnixSockets& unix_sockets;
  const std::unordered_set<uint64_t>& socket_inodes;  // inodes of all sockets in `fds`
  std::vector<Obstacle>& found;

  void Add(const ScannedFd& fd, const char* name, const std::string& what, std::string hint) const {
    Obstacle obstacle;
    obstacle.name = name;
    obstacle.pid = fd.pid;
    obstacle.fd = fd.fd;
    obstacle.inode = fd.info.st_ino;
    obstacle.message = Describe(fd.pid, fd.comm) + " holds " + what;
    obstacle.hint = std::move(hint);
    found.push_back(std::move(obstacle));
  }
};

std::string At(const ScannedFd& fd) { return " (fd " + std::to_string(fd.fd) + ")"; }

// The kinds of anonymous inodes that CRIU 4.2.1 supports (its files.c). It supports bpf-map only if
// it was built with libbpf.
constexpr std::string_view kCarriedAnon[] = {"[eventfd]",  "[eventpoll]", "inotify", "[fanotify]",
                                             "[signalfd]", "[timerfd]",   "[pidfd]", "bpf-map"};
struct AnonHint {
  std::string_view name;
  std::string_view what;
  std::string_view hint;
};
constexpr AnonHint kAnonHints[] = {
    {"[io_uring]", "an io_uring",
     "Start it with USE_LIBUV=0 (PyTorch) or UV_USE_IO_URING=0 (Node.js), or disable io_uring in "
     "the "
     "program."},
    {"[userfaultfd]", "a userfaultfd", "Disable userfaultfd in the program."},
    {"[perf_event]", "a perf event", "Stop profiling the program."},
    {"bpf-prog", "a BPF program", "Unload the BPF program first."},
    {"bpf_link", "a BPF link", "Unload the BPF program first."},
    {"[landlock-ruleset]", "a Landlock rule set", ""},
    {"kvm-vm", "a KVM virtual machine", "Save the virtual machine with its own monitor."},
    {"kvm-vcpu", "a KVM virtual machine", "Save the virtual machine with its own monitor."},
    {"sync_file", "a sync file of a graphics driver", ""},
};

void CheckAnon(const Search& search, const ScannedFd& fd) {
  constexpr std::string_view kPrefix = "anon_inode:";
  std::string_view target = fd.target;
  if (!target.starts_with(kPrefix)) return;
  std::string_view kind = target.substr(kPrefix.size());
  for (std::string_view carried : kCarriedAnon) {
    if (kind.starts_with(carried)) return;
  }
  std::string what = "a special file '" + std::string(kind) + "'";
  std::string hint;
  for (const AnonHint& row : kAnonHints) {
    if (!kind.starts_with(row.name)) continue;
    what = row.what;
    hint = row.hint;
  }
  const char* name = "special-file";
  if (kind.starts_with("[io_uring]")) name = "io_uring";
  search.Add(fd, name, what + At(fd) + ", which CRIU cannot save", hint);
}

void CheckDevice(const Search& search, const ScannedFd& fd) {
  bool character = S_ISCHR(fd.info.st_mode);
  if ((!character && !S_ISBLK(fd.info.st_mode)) || IsDriverFile(fd.target)) return;
  if (IsPluginFile(fd.target, search.options)) return;
  unsigned number = major(fd.info.st_rdev), minor_number = minor(fd.info.st_rdev);
  constexpr unsigned kMemory = 1, kMisc = 10, kTun = 200, kAutofs = 235;
  if (character) {
    if (number == kMemory || number == 4 || number == 5) return;
    if (number >= 136 && number <= 143) return;  // pseudo terminals
    if (number == kMisc && (minor_number == kTun || minor_number == kAutofs)) return;
  }
  search.Add(fd, "device", "the device " + fd.Path() + At(fd) + ", which CRIU cannot save", "");
}

void CheckDeleted(const Search& search, const ScannedFd& fd) {
  if (!fd.Deleted() || !S_ISREG(fd.info.st_mode) || IsDriverFile(fd.target)) return;
  if (!fd.target.starts_with('/') || fd.target.starts_with("/memfd:")) return;
  if (fd.info.st_nlink > 0 && !search.options.link_remap) {
    search.Add(fd, "deleted-file",
               "the file " + fd.Path() + At(fd) +
                   ", which was deleted at this path but has another hard link",
               "Allow a temporary link to it with --link-remap.");
  }
  auto size = static_cast<uint64_t>(fd.info.st_blocks) * 512;
  if (fd.info.st_nlink == 0 && size > search.options.ghost_limit_bytes) {
    search.Add(fd, "deleted-file",
               "the deleted file " + fd.Path() + At(fd) + " of " + std::to_string(size) +
                   " bytes, more than the limit",
               "Raise the limit with --criu-opt ghost-limit=BYTES.");
  }
}

void CheckLocks(const Search& search, const ScannedFd& fd) {
  if (search.options.file_locks) return;
  for (const std::string& lock : fd.locks) {
    if (lock.find("LEASE") != std::string::npos) continue;
    search.Add(fd, "file-lock", "a lock on " + fd.Path() + At(fd),
               "Use --file-locks to lock it again at the restore.");
    return;
  }
}

template <class T>
bool GetOption(int fd, int level, int name, T* value) {
  socklen_t size = sizeof *value;
  return ::getsockopt(fd, level, name, value, &size) == 0;
}

std::string AddressText(int fd, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = "?";
  if (which(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return text;
  if (address.ss_family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    return "[" + std::string(text) + "]:" + std::to_string(ntohs(v6->sin6_port));
  }
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
  ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  return std::string(text) + ":" + std::to_string(ntohs(v4->sin_port));
}

void CheckTcp(const Search& search, const ScannedFd& fd, int socket) {
  tcp_info info{};
  if (!GetOption(socket, IPPROTO_TCP, TCP_INFO, &info)) return;
  if (info.tcpi_state == TCP_CLOSE) return;
  if (info.tcpi_state == TCP_LISTEN) {
    // For a listening socket, tcpi_unacked is the length of the accept queue.
    if (info.tcpi_unacked == 0 || search.options.tcp_skip_in_flight) return;
    search.Add(fd, "tcp-in-flight",
               "a connection to " + AddressText(socket, ::getsockname) + At(fd) +
                   " that the program has not accepted yet",
               "Try again, or drop it with --criu-opt skip-in-flight.");
    return;
  }
  if (search.options.tcp != Tcp::kRefuse) return;
  search.Add(fd, "tcp",
             "an open TCP connection" + At(fd) + ", " + AddressText(socket, ::getsockname) +
                 " to " + AddressText(socket, ::getpeername),
             "Close it with --tcp=close, or keep it with --tcp=keep (in a task of Slurm: "
             "--stasis=tcp=close or tcp=keep).");
}

constexpr int kCarriedProtocols[] = {IPPROTO_IP,      IPPROTO_TCP,  IPPROTO_UDP,
                                     IPPROTO_UDPLITE, IPPROTO_ICMP, IPPROTO_ICMPV6};

void CheckInet(const Search& search, const ScannedFd& fd, int socket) {
  int type = 0, protocol = 0;
  if (!GetOption(socket, SOL_SOCKET, SO_TYPE, &type)) return;
  if (!GetOption(socket, SOL_SOCKET, SO_PROTOCOL, &protocol)) return;
  if (type == SOCK_RAW) return;
  if (std::find(std::begin(kCarriedProtocols), std::end(kCarriedProtocols), protocol) ==
      std::end(kCarriedProtocols)) {
    bool multipath = protocol == 262;  // IPPROTO_MPTCP
    search.Add(fd, "socket",
               (multipath ? std::string("a multipath TCP socket")
                          : "a socket of IP protocol " + std::to_string(protocol)) +
                   At(fd) + ", which CRIU cannot save",
               multipath ? "Start it with GODEBUG=multipathtcp=0 (Go programs)." : "");
    return;
  }
  if (type == SOCK_STREAM) CheckTcp(search, fd, socket);
}

// Returns true for the driver's connection to the GPU's server, which the driver closes itself. The
// server is identified by its process, which the kernel reports, because any program could use the
// socket's name.
bool IsConnectedToGpuServer(int fd) {
  ucred peer{};
  return GetOption(fd, SOL_SOCKET, SO_PEERCRED, &peer) && peer.pid > 0 &&
         process::IsSharedServer({peer.pid});
}

void CheckUnix(const Search& search, const ScannedFd& fd, int connection) {
  const UnixSocket* socket = search.unix_sockets.Find(fd.info.st_ino);
  if (socket == nullptr || socket->peer == 0 || !socket->stream) return;
  if (search.socket_inodes.contains(socket->peer)) return;
  for (const ExternalFd& external : search.stdio.externals) {
    if (external.key == fd.target) return;
  }
  std::string external = "unix" + fd.target.substr(fd.target.find('['));
  const auto& named = search.options.external;
  if (std::find(named.begin(), named.end(), external) != named.end()) return;
  const UnixSocket* peer = search.unix_sockets.Find(socket->peer);
  std::string to = peer != nullptr && !peer->name.empty() ? peer->name : "another program";
  if (IsConnectedToGpuServer(connection)) return;
  search.Add(fd, "unix-socket", "a connection" + At(fd) + " to " + to + ", outside of its tree",
             "Have the program close it first, or dump it together with the other program.");
}

struct FamilyRow {
  int family;
  void (*check)(const Search&, const ScannedFd&, int socket);
};
void CarriedAsItIs(const Search&, const ScannedFd&, int) {}
constexpr FamilyRow kFamilies[] = {
    {AF_UNIX, CheckUnix},       {AF_INET, CheckInet},        {AF_INET6, CheckInet},
    {AF_PACKET, CarriedAsItIs}, {AF_NETLINK, CarriedAsItIs},
};

void CheckSocket(const Search& search, const ScannedFd& fd) {
  if (!S_ISSOCK(fd.info.st_mode)) return;
  auto socket = TakeFd(fd.pid, fd.fd);
  int family = 0;
  if (!socket || !GetOption(socket->get(), SOL_SOCKET, SO_DOMAIN, &family)) return;
  for (const FamilyRow& row : kFamilies) {
    if (row.family == family) return row.check(search, fd, socket->get());
  }
  search.Add(fd, "socket",
             "a socket of family " + std::to_string(family) + At(fd) + ", which CRIU cannot save",
             "");
}

constexpr void (*kFdChecks[])(const Search&, const ScannedFd&) = {
    CheckAnon, CheckDevice, CheckDeleted, CheckLocks, CheckSocket};

Obstacle OfProcess(const process::Stat& member, const char* name, const std::string& what,
                   std::string hint) {
  Obstacle obstacle;
  obstacle.name = name;
  obstacle.code = Code::kFailedPrecondition;
  obstacle.pid = member.id.pid;
  obstacle.message = Describe(member.id.pid, member.comm) + " " + what;
  obstacle.hint = std::move(hint);
  return obstacle;
}

void CheckTraced(const Search& search, const process::Stat& member) {
  auto threads = process::ReadThreads(member.id.pid);
  if (!threads) return;
  for (pid_t thread : *threads) {
    auto credentials = process::ReadCredentials({thread});
    if (!credentials || credentials->tracer.value == 0) continue;
    auto tracer = process::ReadStat(credentials->tracer);
    search.found.push_back(
        OfProcess(member, "traced",
                  "is traced by " + Describe(credentials->tracer, tracer ? tracer->comm : "ended"),
                  "Detach the debugger or tracer first."));
    return;
  }
}

void CheckZombieRoot(const Search& search, const process::Stat& member) {
  if (member.state != 'Z' || member.id != search.tree.root().id) return;
  search.found.push_back(OfProcess(member, "zombie", "has ended; only its exit code is left",
                                   "The parent of the process has not reaped it yet."));
}

// Returns the session id in the process's innermost pid namespace, or -1 if unknown.
pid_t SessionInItsNamespace(process::HostPid pid) {
  auto status = ReadFile("/proc/" + std::to_string(pid.value) + "/status");
  constexpr std::string_view kName = "\nNSsid:";
  size_t at = status ? status->find(kName) : std::string::npos;
  if (at == std::string::npos) return -1;
  std::string line = status->substr(at + 1, status->find('\n', at + 1) - at - 1);
  return static_cast<pid_t>(std::atoi(line.c_str() + line.find_last_of("\t ") + 1));
}

// If the session leader is outside of the pid namespace, the session has no id in the namespace
// that a restore could use. The option `shell-job` does not help.
void CheckSession(const Search& search, const process::Stat& member) {
  if (SessionInItsNamespace(member.id.pid) != 0) return;
  for (const Obstacle& known : search.found) {
    if (known.name == "session") return;  // usually all have the same session
  }
  search.found.push_back(OfProcess(
      member, "session",
      "belongs to a session that was started outside of its pid namespace, which CRIU cannot save",
      "Start it with `setsid`, or with `stasis run`."));
  search.found.back().code = Code::kUnimplemented;
}

// Finds devices that are still mapped after their descriptors were closed.
void CheckMappings(const Search& search, const process::Stat& member) {
  auto mappings = process::ReadMappings(member.id.pid);
  if (!mappings) return;
  std::set<std::string> seen;
  for (const process::Mapping& mapping : *mappings) {
    if (!mapping.path.starts_with("/dev/") || mapping.path.starts_with("/dev/shm/") ||
        mapping.path.starts_with("/dev/zero") || mapping.path.starts_with("/dev/hugepages/")) {
      continue;
    }
    if (IsDriverFile(mapping.path) || !seen.insert(mapping.path).second) continue;
    if (IsPluginFile(mapping.path, search.options)) continue;
    struct stat info;
    if (::stat(mapping.path.c_str(), &info) != 0 || !S_ISCHR(info.st_mode)) continue;
    Obstacle obstacle =
        OfProcess(member, "device",
                  "has the device " + mapping.path + " in its memory, which CRIU cannot save", "");
    obstacle.code = Code::kUnimplemented;
    search.found.push_back(std::move(obstacle));
  }
}

constexpr void (*kProcessChecks[])(const Search&, const process::Stat&) = {
    CheckZombieRoot, CheckTraced, CheckSession, CheckMappings};

Result<std::vector<Obstacle>> LookOnce(const process::ProcessTree& tree, const Options& options,
                                       const StdioPlan& stdio) {
  STASIS_ASSIGN(auto fds, ScanFds(tree));
  STASIS_ASSIGN(UnixSockets unix_sockets, UnixSockets::Read(tree.root().id.pid));
  std::unordered_set<uint64_t> socket_inodes;
  for (const ScannedFd& fd : fds) {
    if (S_ISSOCK(fd.info.st_mode)) socket_inodes.insert(fd.info.st_ino);
  }
  std::vector<Obstacle> found;
  Search search{tree, options, stdio, unix_sockets, socket_inodes, found};
  for (const process::Stat& member : tree.members) {
    for (auto check : kProcessChecks) check(search, member);
  }
  for (const ScannedFd& fd : fds) {
    for (auto check : kFdChecks) check(search, fd);
  }
  return found;
}

bool IsConnection(const Obstacle& obstacle) { return obstacle.name == "unix-socket"; }

}  // namespace

Result<std::vector<Obstacle>> FindObstacles(const process::ProcessTree& tree,
                                            const Options& options, const StdioPlan& stdio) {
  STASIS_ASSIGN(auto found, LookOnce(tree, options, stdio));
  if (std::none_of(found.begin(), found.end(), IsConnection)) return found;
  // The program runs while its descriptors are read, one process after the other. If a connection
  // between two of its processes is opened or closed during the scan, only one end is seen, and the
  // connection seems to lead to another program. A second scan would show this for other sockets,
  // if at all, so an obstacle counts only if both scans find it.
  STASIS_ASSIGN(auto again, LookOnce(tree, options, stdio));
  std::erase_if(found, [&](const Obstacle& o) {
    return IsConnection(o) && std::none_of(again.begin(), again.end(), [&](const Obstacle& other) {
             return IsConnection(other) && other.pid == o.pid && other.inode == o.inode;
           });
  });
  return found;
}

Error ToError(Obstacle obstacle) {
  return Error{
      obstacle.code, Domain::kProcess, 0, std::move(obstacle.message), std::move(obstacle.hint), {},
      false};
}

Status Preflight(const process::ProcessTree& tree, const Options& options, const StdioPlan& stdio) {
  STASIS_ASSIGN(auto found, FindObstacles(tree, options, stdio));
  if (found.empty()) return {};
  Error first = ToError(std::move(found.front()));
  if (found.size() > 1) {
    first.message += "; " + std::to_string(found.size() - 1) + " more obstacle" +
                     (found.size() == 2 ? " prevents" : "s prevent") + " the dump";
  }
  return Fail(std::move(first));
}

}  // namespace stasis::criu
