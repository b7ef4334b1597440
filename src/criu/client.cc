#include "criu/client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "abi/driver_kinds.h"
#include "base/file.h"
#include "base/operation_id.h"
#include "criu/diagnose.h"
#include "criu/end.h"
#include "criu/inside_protocol.h"
#include "criu/restore_plugin.h"
#include "criu/rpc.pb.h"
#include "ipc/socket.h"
#include "process/namespace.h"

namespace stasis::criu {
namespace {

constexpr std::chrono::seconds kLettingGo{600};

// CRIU's messages have a few hundred bytes; an error text is the longest part.
constexpr size_t kMaxMessageBytes = 256u << 10;
// Time limit for CRIU to exit after its answer. At that point CRIU only frees memory.
constexpr auto kExitGrace = std::chrono::seconds(10);

constexpr const char* kAmdPluginChecks[] = {
    "KFD_FW_VER_CHECK",    "KFD_SDMA_FW_VER_CHECK", "KFD_CACHES_COUNT_CHECK", "KFD_NUM_GWS_CHECK",
    "KFD_VRAM_SIZE_CHECK", "KFD_NUMA_CHECK",        "KFD_CAPABILITY_CHECK"};

constexpr char kDumping[] = "CRIU could not dump the tree";
constexpr char kRestoring[] = "CRIU could not restore the tree";

struct MomentRow {
  std::string_view name;
  Moment moment;
};
constexpr MomentRow kMoments[] = {
    {"pre-dump", Moment::kPreDump},         {"query-ext-files", Moment::kQueryExternalFiles},
    {"post-dump", Moment::kPostDump},       {"pre-restore", Moment::kPreRestore},
    {"post-restore", Moment::kPostRestore}, {"pre-resume", Moment::kPreResume},
    {"post-resume", Moment::kPostResume},
};

Moment FindMoment(std::string_view name) {
  for (const MomentRow& row : kMoments) {
    if (row.name == name) return row.moment;
  }
  return Moment::kOther;
}

struct LogPlace {
  UniqueFd directory;
  std::string name;
};

// CRIU takes the log's file name and its folder separately. It finds the folder by the number of a
// descriptor of this process.
Result<LogPlace> OpenLogPlace(const std::string& log_path) {
  std::filesystem::path path(AbsolutePath(log_path));
  LogPlace place;
  place.name = path.filename().string();
  STASIS_ASSIGN(place.directory, Open(path.parent_path().string(), O_PATH | O_DIRECTORY));
  return place;
}

// Returns the error for a CRIU that exceeded its deadline.
Error Overdue(Ended ended) {
  struct Row {
    Ended ended;
    const char* words;
  };
  static constexpr Row kTable[] = {
      {Ended::kByItself, "CRIU did not finish in time and has rolled back its work"},
      {Ended::kKilled, "CRIU did not finish in time and had to be killed"},
      {Ended::kNotYet, "CRIU did not finish in time and cannot be killed: it hangs in the kernel"},
  };
  Error error;
  error.code = Code::kDeadlineExceeded;
  error.domain = Domain::kCriu;
  for (const Row& row : kTable) {
    if (row.ended == ended) error.message = row.words;
  }
  error.hint = "Check whether the storage answers. If it is only slow, use a longer --timeout.";
  error.not_undone = ended == Ended::kNotYet;
  if (error.not_undone) {
    error.hint =
        "CRIU is waiting for a file system or a device, and keeps the program stopped until it "
        "gets an answer. Then CRIU exits, the program continues, and `stasis recover` finishes the "
        "roll-back.";
  }
  return error;
}

Error Gone() {
  return Error{Code::kUnavailable, Domain::kCriu, 0, "CRIU ended without an answer", {}, {}, false};
}

bool IsGone(const Error& error) {
  return error.code == Code::kUnavailable && error.domain == Domain::kCriu;
}
bool IsOverdue(const Error& error) {
  return error.code == Code::kDeadlineExceeded && error.domain == Domain::kCriu;
}

}  // namespace

std::string ToString(const Version& version) {
  std::string text = std::to_string(version.major) + "." + std::to_string(version.minor);
  if (version.sublevel != 0) text += "." + std::to_string(version.sublevel);
  return text;
}

SwrkCommand MakeSwrkCommand(const std::string& criu_path, const std::string& plugins) {
  SwrkCommand command;
  // CRIU's configuration files could override options of the request.
  command.argv = {criu_path, "--no-default-config", "swrk", std::to_string(SwrkCommand::kSocketFd)};
  for (std::string& entry : ScrubbedEnvironment()) {
    if ((!entry.starts_with("STASIS_") || entry.starts_with(kOperationVariable)) &&
        !abi::IsDriverVariable(entry)) {
      command.env.push_back(std::move(entry));
    }
  }
  // CRIU loads every *.so in this directory as a plugin, and the RPC has no field to disable
  // plugins such as the CUDA plugin. The directory must exist. /proc/self/task exists in every
  // process and contains only numeric names.
  command.env.push_back("CRIU_LIBS_DIR=" + (plugins.empty() ? "/proc/self/task" : plugins));
  // The variables of the plugin for AMD GPUs (docs/amd.md). All of its checks are on.
  if (!plugins.empty()) {
    for (const char* check : kAmdPluginChecks) command.env.push_back(std::string(check) + "=1");
  }
  return command;
}

Result<Session> Session::Spawn(const std::string& criu_path, const std::map<int, int>& extra_fds,
                               const std::string& plugins, bool network_right) {
  STASIS_ASSIGN(ipc::SocketPair pair, ipc::MakeSocketPair());
  STASIS_ASSIGN(UniqueFd null, Open("/dev/null", O_RDWR));
  SwrkCommand command = MakeSwrkCommand(criu_path, plugins);
  SpawnOptions spawn;
  spawn.argv = command.argv;
  spawn.env = command.env;
  spawn.new_session = true;
  spawn.ignored_signals = {SIGXFSZ};  // required by EndDump
  spawn.rights = SpawnOptions::Rights::kDump;
  spawn.network_right = network_right;
  spawn.fds = extra_fds;
  spawn.fds[STDERR_FILENO] = null.get();
  spawn.fds[SwrkCommand::kSocketFd] = pair.theirs.get();
  Session session;
  STASIS_ASSIGN(session.child_, Subprocess::Spawn(spawn));
  session.criu_pid_ = {session.child_->pid()};
  session.criu_pidfd_.Reset(::fcntl(session.child_->pidfd(), F_DUPFD_CLOEXEC, 0));
  session.socket_ = std::move(pair.ours);
  return session;
}

Session Session::OverSocket(UniqueFd socket, process::HostPid criu) {
  Session session;
  session.socket_ = std::move(socket);
  session.criu_pid_ = criu;
  if (criu.value > 0) {
    session.criu_pidfd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, criu.value, 0)));
  }
  return session;
}

Result<Session> Session::Inside(UniqueFd socket) {
  ucred maker{};
  socklen_t size = sizeof maker;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &maker, &size) != 0) {
    return FailErrno(errno, "read CRIU's process id");
  }
  Session session = OverSocket(std::move(socket), {maker.pid});
  session.inside_ = true;
  STASIS_ASSIGN(session.pid_namespace_, process::ReadNamespace(session.criu_pid_, "pid"));
  return session;
}

Session::Session() = default;
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

void Session::UsePlugin(UniqueFd socket) {
  // Fails only if CRIU has exited, which Restore reports.
  auto link = MakePluginLink(std::move(socket), criu_pid_);
  if (link) plugin_ = std::make_unique<RestorePlugin>(std::move(*link));
}

// Passes the numbers of descriptors in the process that made the socket pair. CRIU looks them up in
// /proc. CRIU 4.1 fails if the images' folder is given by its path.
Status Session::SetPlaces(const std::string& images_dir, const std::string& log_path,
                          rpc::Opts* opts) {
  STASIS_ASSIGN(LogPlace log, OpenLogPlace(log_path));
  STASIS_ASSIGN(images_, Open(images_dir, O_PATH | O_DIRECTORY));
  log_folder_ = std::move(log.directory);
  opts->set_images_dir_fd(inside_ ? kImagesFd : images_.get());
  opts->set_work_dir_fd(inside_ ? kLogFolderFd : log_folder_.get());
  opts->set_log_file(log.name);
  opts->set_notify_scripts(true);
  return {};
}

Result<pid_t> Session::ToCriu(process::HostPid pid) const {
  if (!inside_) return pid.value;
  return process::ReadInnerPid(pid);
}

Result<process::HostPid> Session::FromCriu(pid_t pid) {
  if (!inside_ || pid <= 0) return process::HostPid{pid};
  // The pid is cached, because the process may have ended before a later notification.
  if (root_.first != pid) {
    STASIS_ASSIGN(process::HostPid found, process::FindByInnerPid(pid_namespace_, pid));
    root_ = {pid, found};
  }
  return root_.second;
}

Status Session::Send(const rpc::Request& request) {
  if (!socket_) return Fail(Code::kInternal, "this CRIU session has already ended");
  std::string bytes;
  request.SerializeToString(&bytes);
  Status sent = ipc::SendPacket(socket_.get(), bytes.data(), bytes.size());
  if (!sent && sent.error().raw == EPIPE) return Fail(Gone());
  return Annotate(std::move(sent), "a request to CRIU");
}

Result<rpc::Response> Session::Receive(const Deadline& deadline) {
  // Also watches the pidfd. A child that CRIU forked to probe the kernel may outlive CRIU and keep
  // the socket open, so that there is no end-of-file.
  pollfd waiting[] = {{socket_.get(), POLLIN, 0}, {criu_pidfd_.get(), POLLIN, 0}};
  int ready = TEMP_FAILURE_RETRY(::poll(waiting, std::size(waiting), deadline.PollTimeout()));
  if (ready < 0) return FailErrno(errno, "poll");
  if (ready > 0 && waiting[0].revents == 0) {
    // Packets that CRIU sent before it exited must still be read.
    if (TEMP_FAILURE_RETRY(::poll(waiting, 1, 0)) <= 0) return Fail(Gone());
  }
  if (ready == 0) {
    return Fail(Code::kDeadlineExceeded, Domain::kCriu, 0, "CRIU did not answer in time");
  }
  std::string bytes(kMaxMessageBytes, '\0');
  auto packet = ipc::ReceivePacket(socket_.get(), bytes.data(), bytes.size());
  if (!packet && packet.error().raw != ECONNRESET) {
    return Fail(std::move(packet.error().WithContext("CRIU")));
  }
  if (!packet || packet->size == 0) return Fail(Gone());
  rpc::Response response;
  if (packet->size > bytes.size() ||
      !response.ParseFromArray(bytes.data(), static_cast<int>(packet->size))) {
    return Fail(Code::kInternal, Domain::kCriu, 0, "CRIU sent a malformed answer");
  }
  return response;
}

bool Session::PluginAsks(const Deadline& deadline) const {
  if (!plugin_ || plugin_->fd() < 0) return false;
  pollfd waiting[] = {
      {socket_.get(), POLLIN, 0}, {criu_pidfd_.get(), POLLIN, 0}, {plugin_->fd(), POLLIN, 0}};
  const int ready = TEMP_FAILURE_RETRY(::poll(waiting, std::size(waiting), deadline.PollTimeout()));
  return ready > 0 && waiting[0].revents == 0 && waiting[2].revents != 0;
}

Result<rpc::Response> Session::Converse(const rpc::Request& request, const NotifyHandler& handler,
                                        const Deadline& deadline) {
  STASIS_TRY(Send(request));
  return AwaitAnswer(handler, deadline);
}

Result<rpc::Response> Session::AwaitAnswer(const NotifyHandler& handler, const Deadline& until) {
  Deadline deadline = until;
  Status refused;
  // Time spent in the handler does not count against the deadline.
  auto ask = [&](Notification& notification) -> Status {
    const auto asked = Deadline::Clock::now();
    Status verdict = handler ? handler(notification) : Status{};
    deadline = deadline.Plus(Deadline::Clock::now() - asked);
    return verdict;
  };
  const RestorePlugin::Pids pids{[this](process::HostPid pid) { return ToCriu(pid); },
                                 [this](pid_t pid) { return FromCriu(pid); }};
  while (true) {
    if (PluginAsks(deadline)) {
      Status verdict = plugin_->Serve(pids, ask);
      if (!verdict && refused) refused = std::move(verdict);
      continue;
    }
    auto received = notification_ ? *std::exchange(notification_, nullptr) : Receive(deadline);
    if (!received) return Fail(!refused ? refused.error() : received.error());
    const rpc::Response& response = *received;
    if (response.type() != rpc::NOTIFY) {
      if (!refused) return Fail(std::move(refused).error());
      return response;
    }
    Notification notification;
    notification.moment = FindMoment(response.notify().script());
    Status verdict;
    if (auto pid = FromCriu(response.notify().pid())) {
      notification.pid = *pid;
    } else {
      verdict = Fail(std::move(pid).error());
    }
    notification.stops_again = plugin_ && plugin_->is_loaded();
    if (verdict) verdict = ask(notification);
    // After this answer CRIU kills or resumes the tasks. It must not be interrupted then.
    if (verdict && notification.moment == Moment::kPostDump) deadline = Deadline::In(kLettingGo);
    rpc::Request answer;
    answer.set_type(rpc::NOTIFY);
    answer.set_notify_success(verdict.has_value());
    // The first rejection is the cause; later notifications belong to CRIU's roll-back.
    if (!verdict && refused) refused = std::move(verdict);
    STASIS_TRY(Send(answer));
  }
}

Result<rpc::Response> Session::Conclude(Result<rpc::Response> response, const std::string& log_path,
                                        const char* what) {
  std::string how = Reap();
  if (response || !IsGone(response.error())) return response;
  // CRIU died before it could report an error; its log may have one.
  Error error = DiagnoseFile(log_path, what, 0);
  error.message += "; CRIU ended without an answer" + (how.empty() ? "" : " (it " + how + ")");
  return Fail(std::move(error));
}

std::string Session::Reap() {
  socket_.Reset();
  if (inside_) {
    // CRIU is not a child of this process, but of the init process of its namespace. Wait for CRIU
    // nevertheless, so that the descriptors that it inherited are closed.
    pollfd end{criu_pidfd_.get(), POLLIN, 0};
    (void)!TEMP_FAILURE_RETRY(::poll(&end, 1, Deadline::In(kExitGrace).PollTimeout()));
  }
  if (!child_) return {};
  auto status = child_->Wait(Deadline::In(kExitGrace));
  return status ? DescribeWaitStatus(*status) : "is still running";
}

Status CriuSession::PrepareDump(const DumpRequest&, const Deadline&) { return {}; }

Status Session::SendDump(const DumpRequest& request) {
  STASIS_ASSIGN(const process::Stat root, process::ReadStat(request.pid));
  dumped_ = root.id;
  rpc::Request message;
  message.set_type(rpc::DUMP);
  rpc::Opts* opts = message.mutable_opts();
  Apply(request.options, opts);
  STASIS_TRY(SetPlaces(request.images_dir, request.log_path, opts));
  STASIS_ASSIGN(const pid_t pid, ToCriu(request.pid));
  opts->set_pid(pid);
  opts->set_leave_running(request.leave_running);
  return Send(message);
}

Status Session::PrepareDump(const DumpRequest& request, const Deadline& deadline) {
  STASIS_TRY(SendDump(request));
  auto first = Receive(deadline);
  if (!first || first->type() != rpc::NOTIFY) {
    Status failed = FinishDump(request, std::move(first), false);
    if (!failed && IsOverdue(failed.error())) {
      failed.error().message = "CRIU did not start in time. It has not touched the program";
      failed.error().hint =
          "Check whether the storage answers. If it is only slow, use a longer --timeout.";
      failed.error().not_undone = false;
    }
    return failed;
  }
  // CRIU's first notification is pre-dump. It waits for the answer.
  notification_ = std::make_shared<rpc::Response>(std::move(*first));
  return {};
}

void Session::CancelPrepared() {
  notification_.reset();
  if (socket_) Reap();
}

Status Session::Dump(const DumpRequest& request, const NotifyHandler& handler,
                     const Deadline& deadline) {
  if (!notification_) STASIS_TRY(SendDump(request));
  bool accepted = false;
  auto answer = [&](Notification& notification) -> Status {
    bool complete = notification.moment == Moment::kPostDump;
    if (handler) STASIS_TRY(handler(notification));
    accepted |= complete;
    return {};
  };
  auto response = AwaitAnswer(answer, deadline);
  return FinishDump(request, std::move(response), accepted);
}

Status Session::FinishDump(const DumpRequest& request, Result<rpc::Response> response,
                           bool accepted) {
  // A failed dump leaves the program unchanged, unless CRIU was killed (end.h).
  auto outcome = [&](Error error) {
    if (accepted || process::IsAlive(dumped_)) return error;
    error.not_undone = true;
    error.message += "; the program has died too";
    return error;
  };
  if (!response && IsOverdue(response.error()) && criu_pidfd_) {
    socket_.Reset();
    Ended ended = EndDump(criu_pid_, criu_pidfd_.get());
    Reap();
    return Fail(outcome(Overdue(ended)));
  }
  auto done = Conclude(std::move(response), request.log_path, kDumping);
  if (!done) return Fail(outcome(std::move(done).error()));
  if (done->success()) return {};
  return Fail(
      outcome(DiagnoseFile(request.log_path, kDumping, done->cr_errno(), done->cr_errmsg())));
}

Result<process::HostPid> Session::Restore(const RestoreRequest& request,
                                          const NotifyHandler& handler, const Deadline& deadline) {
  rpc::Request message;
  message.set_type(rpc::RESTORE);
  rpc::Opts* opts = message.mutable_opts();
  Apply(request.options, opts);
  STASIS_TRY(SetPlaces(request.images_dir, request.log_path, opts));
  for (const InheritFd& inherit : request.inherit) {
    rpc::InheritFd* entry = opts->add_inherit_fd();
    entry->set_key(inherit.key);
    entry->set_fd(inherit.fd);
  }
  process::HostPid root;
  auto answer = [&](Notification& notification) -> Status {
    if (notification.pid.value > 0) root = notification.pid;
    return handler ? handler(notification) : Status{};
  };
  auto response = Converse(message, answer, deadline);
  if (!response && IsOverdue(response.error()) && criu_pidfd_) {
    socket_.Reset();
    Ended ended = EndRestore(criu_pid_, criu_pidfd_.get(), root);
    Reap();
    return Fail(Overdue(ended));
  }
  STASIS_ASSIGN(rpc::Response done, Conclude(std::move(response), request.log_path, kRestoring));
  if (!done.success())
    return Fail(DiagnoseFile(request.log_path, kRestoring, done.cr_errno(), done.cr_errmsg()));
  if (plugin_ && plugin_->is_loaded() && !plugin_->has_stopped()) {
    return Fail(Code::kInternal, Domain::kCriu, 0, "CRIU has not called its plugin");
  }
  return FromCriu(done.restore().pid());
}

Result<Version> Session::GetVersion(const Deadline& deadline) {
  rpc::Request message;
  message.set_type(rpc::VERSION);
  auto response = Converse(message, nullptr, deadline);
  Reap();
  if (!response) return Fail(std::move(response).error());
  if (!response->success()) {
    return Fail(Code::kInternal, Domain::kCriu, response->cr_errno(),
                "CRIU did not report its version");
  }
  const rpc::VersionInfo& version = response->version();
  return Version{version.major_number(), version.minor_number(), version.sublevel()};
}

Status Session::Check(const std::string& log_path, const Deadline& deadline) {
  STASIS_ASSIGN(LogPlace log, OpenLogPlace(log_path));
  rpc::Request message;
  message.set_type(rpc::CHECK);
  rpc::Opts* opts = message.mutable_opts();
  // Not used by this request, but CRIU 4.1 requires the field.
  opts->set_images_dir_fd(log.directory.get());
  opts->set_work_dir_fd(log.directory.get());
  opts->set_log_file(log.name);
  opts->set_log_level(2);
  opts->set_unprivileged(::geteuid() != 0);
  auto response = Converse(message, nullptr, deadline);
  Reap();
  if (!response) return Fail(std::move(response).error());
  if (!response->success()) {
    Error error = DiagnoseFile(log_path, "CRIU cannot work on this machine", response->cr_errno(),
                               response->cr_errmsg());
    if (error.code == Code::kInternal) error.code = Code::kUnimplemented;
    return Fail(std::move(error));
  }
  return {};
}

}  // namespace stasis::criu
