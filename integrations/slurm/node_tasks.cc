#include "slurm/node_tasks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "ipc/message.h"
#include "ipc/socket.h"
#include "slurm/watch.h"

namespace stasis::slurm {
namespace {

constexpr uint32_t kNodeMagic = 0x5354'4e54;  // "STNT"
constexpr uint32_t kNodeVersion = 1;

}  // namespace

struct NodeMessage {
  uint32_t magic = kNodeMagic;
  uint32_t version = kNodeVersion;
  NodeWord word = NodeWord::kHere;
  int32_t value = 0;
  int32_t restarts = 0;
  char text[64] = {};  // name of the task, or reason
};

namespace {

constexpr int kBacklog = 512;
// Processes of the user that connect and say nothing must not take all descriptors. So many are
// admitted in addition to the launchers.
constexpr size_t kMostOthers = 64;
// A leader whose backlog is full is tried again after this time.
constexpr std::chrono::milliseconds kRetry{50};
constexpr int kLastSignalNumber = 64;

// A full socket belongs to a launcher that is stopped or has ended; it must not stop this one.
void SendNode(int socket, NodeWord word, int value, std::string_view text = "") {
  NodeMessage message;
  message.word = word;
  message.value = value;
  ipc::PutText(message.text, text);
  (void)ipc::SendPacket(socket, &message, sizeof message, {}, MSG_DONTWAIT);
}

enum class Got { kMessage, kNothing, kEnd };

// Reads one packet without waiting. A packet that is no message ends the connection.
Got Receive(int socket, NodeMessage* message) {
  auto receive = [&] {
    return TEMP_FAILURE_RETRY(::recv(socket, message, sizeof *message, MSG_DONTWAIT | MSG_TRUNC));
  };
  ssize_t size = receive();
  // A launcher that ended before it had read everything. Its own last messages come after this
  // error.
  if (size < 0 && errno == ECONNRESET) size = receive();
  if (size < 0 && errno == EAGAIN) return Got::kNothing;
  if (size <= 0 ||
      ipc::WhyNoMessage(*message, static_cast<size_t>(size), kNodeMagic, kNodeVersion) != nullptr ||
      !ipc::IsTerminated(message->text)) {
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

// Polls these descriptors and the launcher's own, until `retry` at most. Returns an error if the
// launcher must end, or at the deadline if nothing is ready then: a launcher that was stopped looks
// at what has come meanwhile.
Status PollWith(const NodeWait& wait, std::vector<pollfd> polls, const std::string& late,
                const Deadline& retry = {}) {
  polls.push_back({wait.fd, POLLIN, 0});
  const int timeout = Deadline::Sooner(wait.deadline, retry).PollTimeout();
  const int ready = ::poll(polls.data(), polls.size(), timeout);
  if (ready < 0 && errno != EINTR) return FailErrno(errno, "poll");
  if (polls.back().revents != 0 && wait.stops && wait.stops()) {
    return Fail(Code::kCancelled, "the task was ended before its program was started");
  }
  if (ready == 0 && wait.deadline.passed()) return Fail(Code::kDeadlineExceeded, late);
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
    Error error = ErrnoError(errno, "open the socket " + meeting.folder + "/" + name);
    error.hint =
        "the state folder must be on a file system with Unix sockets; STASIS_STATE_DIR "
        "names another one";
    return Fail(std::move(error));
  }
  leader.listener_ = std::move(listener);
  return leader;
}

void NodeLeader::Accept() {
  const size_t most = members_.size() + kMostOthers;
  for (size_t i = 0; i < most; ++i) {  // the others at the next call
    // Launchers send their names at once.
    if (unknown_.size() >= most) ReadFirst();
    if (unknown_.size() >= most) unknown_.clear();
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (IsOwnUser(socket.get())) unknown_.push_back(std::move(socket));
  }
}

// Returns the reason why the sender is not admitted; empty if it is.
std::string NodeLeader::WhyNoMember(const NodeMessage& message) const {
  const auto local = static_cast<size_t>(message.value);
  if (message.word != NodeWord::kHere || message.value < 1 || local >= members_.size() ||
      !IsTaskName(message.text)) {
    return "it is no task of this step";
  }
  if (message.restarts != meeting_.restarts) return "it belongs to another start of the step";
  return members_[local] ? "a launcher of this task is already there" : "";
}

void NodeLeader::ReadFirst() {
  for (UniqueFd& socket : unknown_) {
    NodeMessage message;
    const Got got = Receive(socket.get(), &message);
    if (got == Got::kNothing) continue;
    UniqueFd taken = std::move(socket);
    if (got == Got::kEnd) continue;
    if (const std::string reason = WhyNoMember(message); !reason.empty()) {
      SendNode(taken.get(), NodeWord::kReject, 0, reason);
      continue;
    }
    const auto local = static_cast<size_t>(message.value);
    tasks_[local] = message.text;
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

void NodeLeader::SendEndToUnknown(int code) {
  if (listener_) Accept();
  for (const UniqueFd& socket : unknown_) SendNode(socket.get(), NodeWord::kEnd, code);
  unknown_.clear();
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

// Connects to the leader. Returns an empty descriptor if there is none yet, or its backlog is full
// (`is_full`).
Result<UniqueFd> Connect(int folder, const std::string& name, bool* is_full) {
  STASIS_ASSIGN(const sockaddr_un address, ipc::AddressIn(folder, name));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return FailErrno(errno, "socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    if (IsOwnUser(socket.get())) return socket;
    return Fail(Code::kPermissionDenied, "the socket " + name + " belongs to another user");
  }
  *is_full = errno == EAGAIN;
  if (*is_full || errno == ENOENT || errno == ECONNREFUSED || errno == EINTR) return UniqueFd();
  return FailErrno(errno, "connect to the socket " + name);
}

}  // namespace

Result<NodeMember> NodeMember::Join(const NodeMeeting& meeting, const std::string& task, int local,
                                    const UniqueFd& watch, const NodeWait& wait) {
  STASIS_ASSIGN(const UniqueFd folder, OpenFolder(meeting.folder));
  UniqueFd socket;
  while (true) {
    // Before the look at the socket, so that it is not missed.
    ForgetEvents(watch);
    bool is_full = false;
    STASIS_ASSIGN(socket, Connect(folder.get(), SocketName(meeting), &is_full));
    if (socket) break;
    STASIS_TRY(PollWith(wait, {{watch.get(), POLLIN, 0}},
                        "the first task of the step on this node (SLURM_LOCALID 0) was not started "
                        "in time. Its own output may have the reason",
                        is_full ? Deadline::In(kRetry) : Deadline()));
  }
  NodeMessage message;
  message.value = local;
  message.restarts = meeting.restarts;
  ipc::PutText(message.text, task);
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
    if (message.word == NodeWord::kReject) news.rejected = message.text;
  }
  return news;
}

void NodeMember::SendSignal(int signal) { SendNode(socket_.get(), NodeWord::kSignal, signal); }

}  // namespace stasis::slurm
