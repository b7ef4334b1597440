#include "slurm/node_tasks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "ipc/message.h"
#include "ipc/socket.h"

namespace stasis::slurm {
namespace {

constexpr uint32_t kNodeMagic = 0x5354'4e54;  // "STNT"
constexpr uint32_t kNodeVersion = 1;
constexpr int kBacklog = 512;
// A process of the user that connects and says nothing must not take all descriptors.
constexpr size_t kMostUnknown = 64;
constexpr int kLastSignalNumber = 64;

struct NodeMessage {
  uint32_t magic = kNodeMagic;
  uint32_t version = kNodeVersion;
  NodeWord word = NodeWord::kHere;
  int32_t value = 0;
  int32_t restarts = 0;
  char task[64] = {};
};

// A full socket belongs to a launcher that is stopped or has ended; it must not stop this one.
void SendNode(int socket, NodeWord word, int value) {
  NodeMessage message;
  message.word = word;
  message.value = value;
  (void)ipc::SendPacket(socket, &message, sizeof message, {}, MSG_DONTWAIT);
}

enum class Got { kMessage, kNothing, kEnd };

// Reads one packet without waiting. A packet that is no message ends the connection.
Got Receive(int socket, NodeMessage* message) {
  const ssize_t size =
      TEMP_FAILURE_RETRY(::recv(socket, message, sizeof *message, MSG_DONTWAIT | MSG_TRUNC));
  if (size < 0 && errno == EAGAIN) return Got::kNothing;
  if (size <= 0 ||
      ipc::WhyNoMessage(*message, static_cast<size_t>(size), kNodeMagic, kNodeVersion) != nullptr ||
      !ipc::IsTerminated(message->task)) {
    return Got::kEnd;
  }
  return Got::kMessage;
}

bool IsOwnUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

// Returns true if the name can be part of a path in the folder.
bool IsTaskName(std::string_view name) {
  return name.starts_with("slurm-") && name.find('/') == name.npos;
}

std::string SocketName(const NodeMeeting& meeting) { return meeting.name + ".socket"; }

Result<UniqueFd> OpenFolder(const std::string& folder) {
  return Open(folder, O_PATH | O_DIRECTORY);
}

// Polls these descriptors and the launcher's own. Returns an error at the deadline or if the
// launcher must end.
Status PollWith(const NodeWait& wait, std::vector<pollfd> polls, const std::string& late) {
  polls.push_back({wait.fd, POLLIN, 0});
  const int ready = ::poll(polls.data(), polls.size(), wait.deadline.PollTimeout());
  if (ready < 0 && errno != EINTR) return FailErrno(errno, "poll");
  if (polls.back().revents != 0 && wait.stops && wait.stops()) {
    return Fail(Code::kCancelled, "the task was ended before its program was started");
  }
  if (wait.deadline.passed()) return Fail(Code::kDeadlineExceeded, late);
  return {};
}

}  // namespace

NodeLeader::NodeLeader(NodeMeeting meeting, const std::string& task)
    : meeting_(std::move(meeting)) {
  members_.resize(static_cast<size_t>(meeting_.count));
  tasks_.resize(members_.size());
  tasks_[0] = task;
}

NodeLeader::~NodeLeader() {
  if (listener_) ::unlinkat(folder_.get(), SocketName(meeting_).c_str(), 0);
}

Result<NodeLeader> NodeLeader::Listen(const NodeMeeting& meeting, const std::string& task) {
  NodeLeader leader(meeting, task);
  STASIS_ASSIGN(leader.folder_, OpenFolder(meeting.folder));
  // A member must not connect before this process listens, and finds the old socket until then.
  const std::string name = SocketName(meeting), temporary = "." + name;
  STASIS_ASSIGN(const sockaddr_un address, ipc::AddressIn(leader.folder_.get(), temporary));
  ::unlinkat(leader.folder_.get(), temporary.c_str(), 0);
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), kBacklog) != 0 ||
      ::renameat(leader.folder_.get(), temporary.c_str(), leader.folder_.get(), name.c_str()) !=
          0) {
    return FailErrno(errno, "open the socket " + meeting.folder + "/" + name);
  }
  leader.listener_ = std::move(listener);
  return leader;
}

void NodeLeader::Accept() {
  while (unknown_.size() < kMostUnknown) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (IsOwnUser(socket.get())) unknown_.push_back(std::move(socket));
  }
  unknown_.clear();  // launchers send their names at once
}

void NodeLeader::ReadFirst() {
  for (UniqueFd& socket : unknown_) {
    NodeMessage message;
    const Got got = Receive(socket.get(), &message);
    if (got == Got::kNothing) continue;
    UniqueFd taken = std::move(socket);
    const auto local = static_cast<size_t>(message.value);
    if (got == Got::kEnd || message.word != NodeWord::kHere || message.value < 1 ||
        local >= members_.size() || members_[local] || message.restarts != meeting_.restarts ||
        !IsTaskName(message.task)) {
      continue;
    }
    tasks_[local] = message.task;
    members_[local] = std::move(taken);
  }
  std::erase_if(unknown_, [](const UniqueFd& socket) { return !socket.valid(); });
}

bool NodeLeader::IsComplete() const {
  return std::all_of(members_.begin() + 1, members_.end(),
                     [](const UniqueFd& socket) { return socket.valid(); });
}

std::string NodeLeader::Missing() const {
  std::string numbers;
  for (size_t i = 1; i < members_.size(); ++i) {
    if (!members_[i]) numbers += (numbers.empty() ? "" : ", ") + std::to_string(i);
  }
  return fmt::format(
      "not all {} tasks of the step on this node were started in time: missing are those with "
      "SLURM_LOCALID {}. Their own output may have the reason",
      members_.size(), numbers);
}

Status NodeLeader::Gather(const NodeWait& wait) {
  while (!IsComplete()) {
    std::vector<pollfd> polls = {{listener_.get(), POLLIN, 0}};
    for (const UniqueFd& socket : unknown_) polls.push_back({socket.get(), POLLIN, 0});
    STASIS_TRY(PollWith(wait, std::move(polls), Missing()));
    Accept();
    ReadFirst();
  }
  ::unlinkat(folder_.get(), SocketName(meeting_).c_str(), 0);
  listener_.Reset();
  unknown_.clear();
  return {};
}

void NodeLeader::SendBegun() {
  for (const UniqueFd& socket : members_) {
    if (socket) SendNode(socket.get(), NodeWord::kBegun, 0);
  }
}

void NodeLeader::SendEnd(int local, int code) {
  const UniqueFd& socket = members_[static_cast<size_t>(local)];
  if (socket) SendNode(socket.get(), NodeWord::kEnd, code);
}

void NodeLeader::AddTo(std::vector<pollfd>& polls) const {
  for (const UniqueFd& socket : members_) {
    if (socket) polls.push_back({socket.get(), POLLIN, 0});
  }
}

std::vector<TaskSignal> NodeLeader::Read() {
  std::vector<TaskSignal> signals;
  for (size_t i = 0; i < members_.size(); ++i) {
    NodeMessage message;
    while (members_[i]) {
      const Got got = Receive(members_[i].get(), &message);
      if (got == Got::kNothing) break;
      const int local = static_cast<int>(i);
      if (got == Got::kEnd) {
        members_[i].Reset();
        signals.push_back({local, 0});
      } else if (message.word == NodeWord::kSignal && message.value > 0 &&
                 message.value <= kLastSignalNumber) {
        signals.push_back({local, message.value});
      }
    }
  }
  return signals;
}

namespace {

// Connects to the leader. Returns an empty descriptor if there is none yet.
Result<UniqueFd> Connect(int folder, const std::string& name) {
  STASIS_ASSIGN(const sockaddr_un address, ipc::AddressIn(folder, name));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return FailErrno(errno, "socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    if (IsOwnUser(socket.get())) return socket;
    return Fail(Code::kPermissionDenied, "the socket " + name + " belongs to another user");
  }
  if (errno == ENOENT || errno == ECONNREFUSED || errno == EINTR) return UniqueFd();
  return FailErrno(errno, "connect to the socket " + name);
}

}  // namespace

Result<NodeMember> NodeMember::Join(const NodeMeeting& meeting, const std::string& task, int local,
                                    const NodeWait& wait) {
  STASIS_ASSIGN(const UniqueFd folder, OpenFolder(meeting.folder));
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  // Before the first look at the socket, so that it is not missed.
  if (!watch ||
      ::inotify_add_watch(watch.get(), meeting.folder.c_str(), IN_CREATE | IN_MOVED_TO) < 0) {
    return FailErrno(errno, "watch " + meeting.folder);
  }
  UniqueFd socket;
  while (!socket) {
    char events[4096];
    while (::read(watch.get(), events, sizeof events) > 0) {
    }
    STASIS_ASSIGN(socket, Connect(folder.get(), SocketName(meeting)));
    if (socket) break;
    STASIS_TRY(PollWith(wait, {{watch.get(), POLLIN, 0}},
                        "the first task of the step on this node (SLURM_LOCALID 0) was not started "
                        "in time. Its own output may have the reason"));
  }
  NodeMessage message;
  message.value = local;
  message.restarts = meeting.restarts;
  ipc::PutText(message.task, task);
  STASIS_TRY(ipc::SendPacket(socket.get(), &message, sizeof message));
  return NodeMember(std::move(socket));
}

NodeMember::News NodeMember::Read() {
  News news;
  NodeMessage message;
  while (!news.end_code) {
    const Got got = Receive(socket_.get(), &message);
    if (got == Got::kNothing) break;
    news.leader_ended = got == Got::kEnd;
    if (news.leader_ended) break;
    news.begun |= message.word == NodeWord::kBegun;
    if (message.word == NodeWord::kEnd) news.end_code = message.value;
  }
  return news;
}

void NodeMember::SendSignal(int signal) { SendNode(socket_.get(), NodeWord::kSignal, signal); }

}  // namespace stasis::slurm
