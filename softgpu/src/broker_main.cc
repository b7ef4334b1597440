// softgpu-broker: holds the device memory of one user's software GPUs. The first program that needs
// the broker starts it. The broker exits two seconds after the last program and the last allocation
// are gone.
//
//   softgpu-broker DIRECTORY READY_FD DEVICES MEMORY_BYTES CONTEXT_BYTES
//
// Each device is a tmpfs that is not attached to any mount point (fsmount); its size is the
// device's memory. It contains the directories /softgpu/N and /softgpu-hip/N, the prefixes of links
// in /proc/PID/fd and lines in /proc/PID/maps. READY_FD receives one line: "R", or "E" and an error
// message.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base.h"
#include "broker_protocol.h"
#include "fd_passing.h"

namespace softgpu {
namespace {

constexpr int kIdleMs = 2000;

struct Kept {
  Fd file;
  uint64_t token = 0;
};

struct Client {
  Fd socket;
  std::map<uint64_t, Kept> kept;
};

class Broker {
 public:
  Broker(std::string directory, BrokerConfig config)
      : directory_(std::move(directory)), config_(config) {}

  // Returns an empty string or an error message.
  std::string MakeDevices();
  // Returns true if this process is now the broker, and false if another process is.
  bool Claim(std::string* error);
  void Serve();
  void RemoveSocket() { unlink(socket_path().c_str()); }

 private:
  std::string socket_path() const { return directory_ + "/broker.sock"; }
  std::string Mount(int index);
  bool Idle() const;
  bool Handle(Client* client);
  bool Answer(Client* client, const BrokerRequest& request, Fd file);

  std::string directory_;
  BrokerConfig config_;
  Fd lock_;
  Fd listener_;
  std::vector<Fd> cuda_folders_, hip_folders_;  // by device
  std::vector<std::unique_ptr<Client>> clients_;
  uint64_t next_key_ = 1;
};

std::string Errno(const std::string& what) { return what + ": " + strerror(errno); }

bool WriteFile(const char* path, const std::string& text) {
  Fd file(open(path, O_WRONLY | O_CLOEXEC));
  return file.valid() && write(file.get(), text.data(), text.size()) == ssize_t(text.size());
}

// Enters a new user namespace, which grants the privilege to mount file systems.
std::string EnterUserNamespace() {
  uid_t uid = geteuid();
  gid_t gid = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return Errno("cannot create a user namespace");
  WriteFile("/proc/self/setgroups", "deny");
  if (!WriteFile("/proc/self/uid_map", std::to_string(uid) + " " + std::to_string(uid) + " 1") ||
      !WriteFile("/proc/self/gid_map", std::to_string(gid) + " " + std::to_string(gid) + " 1")) {
    return Errno("cannot map the user into a user namespace");
  }
  return "";
}

std::string Broker::Mount(int index) {
  Fd context(int(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC)));
  if (!context.valid()) return Errno("cannot open a tmpfs");
  auto set = [&](const char* key, const std::string& value) {
    return syscall(SYS_fsconfig, context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  if (!set("size", std::to_string(config_.memory_bytes))) return Errno("cannot size a tmpfs");
  set("nr_inodes", "0");       // do not limit the number of allocations
  set("huge", "within_size");  // optional, for speed; the kernel may lack it
  if (syscall(SYS_fsconfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return Errno("cannot create a tmpfs");
  }
  Fd mount(int(syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC, 0)));
  if (!mount.valid()) return Errno("cannot mount a tmpfs");
  for (const auto& [root, folders] :
       {std::pair("softgpu", &cuda_folders_), {"softgpu-hip", &hip_folders_}}) {
    const std::string folder = std::string(root) + "/" + std::to_string(index);
    if (mkdirat(mount.get(), root, 0755) != 0 || mkdirat(mount.get(), folder.c_str(), 0777) != 0) {
      return Errno("cannot create the folder of a device");
    }
    folders->emplace_back(openat(mount.get(), folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folders->back().valid()) return Errno("cannot open the folder of a device");
  }
  return "";
}

std::string Broker::MakeDevices() {
  int probe = int(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC));
  if (probe >= 0) {
    close(probe);
  } else if (errno == EPERM) {
    std::string error = EnterUserNamespace();
    if (!error.empty()) return "mounting a tmpfs is not permitted, and softgpu-broker " + error;
  }
  for (uint32_t i = 0; i < config_.device_count; ++i) {
    std::string error = Mount(int(i));
    if (!error.empty()) return error;
  }
  return "";
}

bool Broker::Claim(std::string* error) {
  const std::string lock = directory_ + "/broker.lock";
  lock_ = Fd(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_.valid()) {
    *error = Errno("cannot open " + lock);
    return false;
  }
  sockaddr_un address{AF_UNIX, {}};
  if (socket_path().size() >= sizeof(address.sun_path)) {
    *error = "the path is too long for a socket; set SOFTGPU_DIR to a shorter one";
    return false;
  }
  strcpy(address.sun_path, socket_path().c_str());
  // The holder of the lock is serving or is about to serve. An exiting broker removes its socket
  // before it releases the lock.
  while (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    Fd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      return false;
    }
    usleep(2000);
  }
  unlink(address.sun_path);
  listener_ = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener_.get(), 128) != 0) {
    *error = Errno("cannot listen on its broker.sock");
    return false;
  }
  chmod(address.sun_path, 0666);  // access is controlled by the directory
  return true;
}

// The broker is idle if it has no connections and no memory is in use. Memory may be in use without
// a connection, because its descriptor may be in flight between two processes.
bool Broker::Idle() const {
  if (!clients_.empty()) return false;
  for (const Fd& device : cuda_folders_) {
    struct statfs s;
    if (fstatfs(device.get(), &s) == 0 && s.f_bfree != s.f_blocks) return false;
  }
  return true;
}

bool Broker::Answer(Client* client, const BrokerRequest& request, Fd file) {
  BrokerReply reply;
  std::vector<int> fds;
  switch (request.op) {
    case BrokerOp::kHello:
      reply.config = config_;
      if (request.version != kBrokerVersion) reply.error = EPROTO;
      for (const Fd& folder : request.key == kHipFolders ? hip_folders_ : cuda_folders_) {
        fds.push_back(folder.get());
      }
      break;
    case BrokerOp::kKeep: {
      Kept kept;
      kept.file = std::move(file);
      if (!kept.file.valid() || getrandom(&kept.token, sizeof(kept.token), 0) < 0) {
        reply.error = EINVAL;
        break;
      }
      reply.key = next_key_++;
      reply.token = kept.token;
      client->kept.emplace(reply.key, std::move(kept));
      break;
    }
    case BrokerOp::kFetch:
      reply.error = ENOENT;
      for (const auto& other : clients_) {
        auto it = other->kept.find(request.key);
        if (it == other->kept.end() || it->second.token != request.token) continue;
        fds.push_back(it->second.file.get());
        reply.error = 0;
      }
      break;
    case BrokerOp::kDrop: {
      auto it = client->kept.find(request.key);
      // A restored process may use a key of an earlier broker, which now belongs to another file.
      // The token shows this.
      bool ours = it != client->kept.end() && it->second.token == request.token;
      if (ours) client->kept.erase(it);
      reply.error = ours ? 0 : ENOENT;
      break;
    }
    case BrokerOp::kDropAll:
      client->kept.clear();
      break;
    default:
      reply.error = EINVAL;
  }
  return SendWithFds(client->socket.get(), &reply, sizeof(reply), fds.data(), int(fds.size()));
}

bool Broker::Handle(Client* client) {
  BrokerRequest request;
  int fds[kMaxPassedFds];
  int count = 0;
  bool ok = ReceiveWithFds(client->socket.get(), &request, sizeof(request), fds, &count);
  Fd file(count > 0 ? fds[0] : -1);
  for (int i = 1; i < count; ++i) close(fds[i]);
  return ok && request.magic == kBrokerMagic && Answer(client, request, std::move(file));
}

void Broker::Serve() {
  for (uint64_t idle_since = NowNs();;) {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const auto& client : clients_) polled.push_back({client->socket.get(), POLLIN, 0});
    poll(polled.data(), polled.size(), kIdleMs / 4);
    for (size_t i = clients_.size(); i-- > 0;) {
      if (polled[i + 1].revents == 0 || Handle(clients_[i].get())) continue;
      clients_.erase(clients_.begin() + ptrdiff_t(i));
    }
    if (polled[0].revents != 0) {
      auto client = std::make_unique<Client>();
      client->socket = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client->socket.valid()) clients_.push_back(std::move(client));
    }
    if (!Idle()) idle_since = NowNs();
    if (NowNs() - idle_since > uint64_t(kIdleMs) * 1'000'000) break;
  }
}

// Starts a new session and closes all inherited files. The process that started the broker does not
// wait for its end (broker_client.cc).
void Detach(int ready_fd) {
  setsid();
  dup2(ready_fd, 3);
  close_range(4, ~0U, 0);
  int null = open("/dev/null", O_RDWR);
  for (int fd : {0, 1, 2}) dup2(null, fd);
  if (null > 2) close(null);
  fcntl(3, F_SETFD, FD_CLOEXEC);
  if (chdir("/") != 0) _exit(1);
  umask(0);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
}

// "SoftGPU" and the device's number, which starts at SOFTGPU_FIRST. The UUIDs are the same for
// every broker, so that a restore finds its GPU again.
void MakeUuids(BrokerConfig* config) {
  const char* first = getenv("SOFTGPU_FIRST");
  for (uint32_t i = 0; i < config->device_count; ++i) {
    memcpy(config->uuids[i], "SoftGPU", 7);
    config->uuids[i][15] = static_cast<unsigned char>(i + (first == nullptr ? 0 : atoi(first)));
  }
}

int Main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "softgpu-broker cannot be run by hand; softgpu's libcuda.so.1 starts it\n");
    return 2;
  }
  std::string directory = argv[1];
  BrokerConfig config;
  config.device_count = uint32_t(atoi(argv[3]));
  config.memory_bytes = strtoull(argv[4], nullptr, 10);
  config.context_bytes = strtoull(argv[5], nullptr, 10);
  MakeUuids(&config);
  Detach(atoi(argv[2]));
  Fd ready(3);
  Broker broker(directory, config);
  std::string error;
  bool ours = broker.Claim(&error);
  if (ours) error = broker.MakeDevices();
  std::string line = error.empty() ? "R" : "E" + error;
  // If the write fails, the process that started the broker has ended. Serve anyway, because other
  // clients may wait for the broker.
  if (write(ready.get(), line.data(), line.size()) < 0) ready.Reset();
  ready.Reset();
  if (ours && error.empty()) broker.Serve();
  if (ours) broker.RemoveSocket();
  return error.empty() ? 0 : 1;
}

}  // namespace
}  // namespace softgpu

int main(int argc, char** argv) { return softgpu::Main(argc, argv); }
