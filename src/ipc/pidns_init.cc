#include "ipc/pidns_init.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>

#include "base/file.h"
#include "ipc/message.h"
#include "ipc/packet.h"
#include "ipc/socket.h"
#include "process/proc.h"

namespace stasis::ipc {
namespace {

constexpr uint32_t kMagic = 0x534e4450;  // "PDNS"
constexpr uint32_t kVersion = 1;
// Set in PidnsRequest::rights: CAP_NET_ADMIN too.
constexpr uint32_t kNetworkRight = 1u << 31;
constexpr uint32_t kSentBefore = 2;  // descriptors before those of the new process
constexpr uint32_t kMaxTargets = kMaxDescriptors - kSentBefore;
constexpr uint64_t kMaxTextBytes = 16u << 20;  // more than exec accepts
constexpr uint32_t kMaxStrings = 1u << 20;
constexpr std::chrono::seconds kReplyTime{30};
constexpr int kErrorPauseMs = 100;

// All versions have the first two fields of both messages and the first descriptor, so that a
// request of another version gets a reply.
struct PidnsRequest {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t arguments = 0;  // numbers of strings; the working directory follows them
  uint32_t variables = 0;
  int32_t pid = 0;      // 0: any
  uint32_t rights = 0;  // SpawnOptions::Rights, and kNetworkRight
  uint32_t new_session = 0;
  uint32_t targets = 0;
  uint64_t ignored_signals = 0;      // bit N - 1: signal N
  int32_t target[kMaxTargets] = {};  // numbers of the descriptors in the new process
};

struct PidnsReply {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t error = 0;  // errno
};

tl::unexpected<Error> NotThere() {
  return Fail(Code::kUnavailable, "the init process of the task's pid namespace has ended");
}

template <class Message>
bool IsOfOtherVersion(const Message& message, size_t size) {
  constexpr size_t kHead = sizeof message.magic + sizeof message.version;
  return size >= kHead && message.magic == kMagic && message.version != kVersion;
}

std::optional<PidnsInit> ReadVariable() {
  const char* value = ::getenv(kPidnsVariable);
  if (value == nullptr) return std::nullopt;
  const std::string text = value;
  // A child process has another descriptor, or none, under this number.
  ::unsetenv(kPidnsVariable);
  char* rest = nullptr;
  const long fd = std::strtol(text.c_str(), &rest, 10);
  const long pid = *rest == ':' ? std::strtol(rest + 1, &rest, 10) : 0;
  int type = 0;
  socklen_t size = sizeof type;
  if (*rest != '\0' || fd <= STDERR_FILENO || fd > INT_MAX || pid <= 0 || pid > INT_MAX ||
      ::getsockopt(static_cast<int>(fd), SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET) {
    return std::nullopt;
  }
  UniqueFd socket(static_cast<int>(fd));
  ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  auto number = process::ReadNamespace({static_cast<pid_t>(pid)}, "pid");
  if (!number) return std::nullopt;
  return PidnsInit(std::move(socket), *number);
}

Result<UniqueFd> WriteStrings(const std::vector<std::string>& strings) {
  UniqueFd file(::memfd_create("stasis-pidns", MFD_CLOEXEC));
  if (!file) return FailErrno(errno, "memfd_create");
  std::string text;
  for (const std::string& string : strings) text.append(string.c_str(), string.size() + 1);
  STASIS_TRY(WriteAll(file.get(), text));
  return file;
}

// Returns exactly `count` strings, or an error.
Result<std::vector<std::string>> ReadStrings(int file, uint32_t count) {
  const auto bad = Fail(Code::kInvalidArgument, "a malformed request");
  struct stat stat;
  if (::fstat(file, &stat) != 0 || !S_ISREG(stat.st_mode) || stat.st_size <= 0 ||
      static_cast<uint64_t>(stat.st_size) > kMaxTextBytes) {
    return bad;
  }
  std::string text(static_cast<size_t>(stat.st_size), '\0');
  STASIS_TRY(PreadAll(file, text.data(), text.size(), 0));
  std::vector<std::string> strings;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\0', at);
    if (end == text.npos || strings.size() == count) return bad;
    strings.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (strings.size() != count) return bad;
  return strings;
}

// Returns nothing if the packet is no request.
std::optional<SpawnOptions> Decode(const PidnsRequest& request, const Packet& packet) {
  if (WhyNoMessage(request, packet.size, kMagic, kVersion) != nullptr || packet.fds_lost ||
      request.targets > kMaxTargets || packet.fds.size() != kSentBefore + request.targets ||
      request.arguments == 0 || request.arguments > kMaxStrings ||
      request.variables > kMaxStrings || request.pid < 0 ||
      (request.rights & ~kNetworkRight) > static_cast<uint32_t>(SpawnOptions::Rights::kDump)) {
    return std::nullopt;
  }
  auto strings = ReadStrings(packet.fds[1].get(), request.arguments + request.variables + 1);
  if (!strings) return std::nullopt;
  SpawnOptions options;
  options.working_directory = std::move(strings->back());
  strings->pop_back();
  options.argv.assign(strings->begin(), strings->begin() + request.arguments);
  options.env.emplace(strings->begin() + request.arguments, strings->end());
  options.new_session = request.new_session != 0;
  options.rights = static_cast<SpawnOptions::Rights>(request.rights & ~kNetworkRight);
  options.network_right = (request.rights & kNetworkRight) != 0;
  for (int signal = 1; signal <= 64; ++signal) {
    if ((request.ignored_signals >> (signal - 1) & 1) != 0) {
      options.ignored_signals.push_back(signal);
    }
  }
  for (uint32_t i = 0; i < request.targets; ++i) {
    if (request.target[i] < 0) return std::nullopt;
    options.fds[request.target[i]] = packet.fds[kSentBefore + i].get();
  }
  return options;
}

Status SpawnHere(const SpawnOptions& options, pid_t pid) {
  if (pid > 1) {
    STASIS_ASSIGN(UniqueFd last, Open("/proc/sys/kernel/ns_last_pid", O_WRONLY));
    STASIS_TRY(WriteAll(last.get(), std::to_string(pid - 1)));
  }
  return Subprocess::Spawn(options).map([](const Subprocess&) {});
}

bool HasClient(int socket) {
  pollfd fd{socket, 0, 0};
  return ::poll(&fd, 1, 0) == 0;
}

// Returns the errno of the reply, or nothing if there must be none.
std::optional<int> Serve(const PidnsRequest& request, const Packet& packet) try {
  if (packet.fds.empty() || !HasClient(packet.fds[0].get())) return std::nullopt;
  if (IsOfOtherVersion(request, packet.size)) return EPROTO;
  const auto options = Decode(request, packet);
  if (!options) return std::nullopt;
  Status started = SpawnHere(*options, request.pid);
  if (started) return 0;
  const Error& error = started.error();
  return error.domain == Domain::kErrno ? static_cast<int>(error.raw) : EIO;
} catch (const std::bad_alloc&) {
  return ENOMEM;
} catch (const std::exception&) {
  return EIO;
}

enum class Received { kPacket, kNothing, kError };

// Receives one request and replies. An empty packet looks like the end-of-file.
Received ServeOne(int socket) try {
  PidnsRequest request;
  auto packet = ReceivePacket(socket, &request, sizeof request);
  if (!packet) return Received::kError;
  if (packet->size == 0) return Received::kNothing;
  PidnsReply reply;
  if (const auto error = Serve(request, *packet)) {
    reply.error = *error;
    (void)SendPacket(packet->fds[0].get(), &reply, sizeof reply, {}, MSG_DONTWAIT);
  }
  return Received::kPacket;
} catch (const std::exception&) {
  return Received::kError;
}

}  // namespace

const PidnsInit* PidnsInit::Get() {
  static const std::optional<PidnsInit> given = ReadVariable();
  return given ? &*given : nullptr;
}

Status PidnsInit::Spawn(const SpawnOptions& options, pid_t pid) const {
  PidnsRequest request;
  std::vector<std::string> strings = options.argv;
  request.arguments = static_cast<uint32_t>(options.argv.size());
  if (options.env) {
    strings.insert(strings.end(), options.env->begin(), options.env->end());
  } else {
    for (char** entry = environ; *entry != nullptr; ++entry) strings.emplace_back(*entry);
  }
  request.variables = static_cast<uint32_t>(strings.size()) - request.arguments;
  std::error_code no_folder;
  strings.push_back(options.working_directory.empty()
                        ? std::filesystem::current_path(no_folder).string()
                        : options.working_directory);
  request.pid = pid;
  request.rights = static_cast<uint32_t>(options.rights);
  if (options.network_right) request.rights |= kNetworkRight;
  request.new_session = options.new_session;
  for (int signal : options.ignored_signals) {
    request.ignored_signals |= uint64_t{1} << (signal - 1);
  }
  if (options.fds.size() > kMaxTargets) return FailErrno(EMFILE, "start " + options.argv[0]);
  STASIS_ASSIGN(UniqueFd text, WriteStrings(strings));
  STASIS_ASSIGN(SocketPair pair, MakeSocketPair());
  std::vector<int> fds = {pair.theirs.get(), text.get()};
  for (auto [target, source] : options.fds) {
    request.target[request.targets++] = target;
    fds.push_back(source);
  }
  Status sent = SendPacket(socket_.get(), &request, sizeof request, fds);
  if (!sent && sent.error().raw == EPIPE) return NotThere();
  STASIS_TRY(std::move(sent));
  pair.theirs.Reset();
  if (!AwaitReadable(pair.ours.get(), Deadline::In(kReplyTime))) {
    return Fail(Code::kDeadlineExceeded, "the init process of the task's pid namespace hangs");
  }
  PidnsReply reply;
  auto packet = ReceivePacket(pair.ours.get(), &reply, sizeof reply);
  if (packet && IsOfOtherVersion(reply, packet->size)) {
    return Fail(Code::kInternal,
                "the init process of the task's pid namespace belongs to another version of Stasis",
                "requeue the job: its next task starts with the installed version");
  }
  if (!packet || WhyNoMessage(reply, packet->size, kMagic, kVersion) != nullptr) return NotThere();
  if (reply.error != 0) return FailErrno(reply.error, "start " + options.argv[0]);
  return {};
}

Status ServePidns(int socket) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  UniqueFd signals(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return FailErrno(errno, "signalfd");
  STASIS_TRY(SendPacket(socket, "r", 1));
  for (;;) {
    pollfd fds[] = {{socket, POLLIN, 0}, {signals.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) {
      // The end of this process would end the program, too.
      if (errno != EINTR) ::poll(nullptr, 0, kErrorPauseMs);
      continue;
    }
    signalfd_siginfo ignored;
    while (::read(signals.get(), &ignored, sizeof ignored) > 0) {
    }
    while (::waitpid(-1, nullptr, WNOHANG | __WALL) > 0) {
    }
    if (fds[0].revents == 0) continue;
    const Received received = ServeOne(socket);
    if (received == Received::kError) ::poll(nullptr, 0, kErrorPauseMs);
    if (received == Received::kNothing && (fds[0].revents & POLLHUP) != 0) return {};
  }
}

}  // namespace stasis::ipc
