#include "api/client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <optional>

#include "api/client_link.h"
#include "api/error_message.h"
#include "api/headers.h"
#include "api/methods.h"
#include "api/repository_choice.h"
#include "api/share_hold.h"
#include "api/worker_credentials.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/task_limits.h"
#include "base/thread.h"
#include "config/open_paths.h"
#include "containers/reference.h"
#include "jobs/manage.h"
#include "stasis/v1/stasis.grpc.pb.h"
#include "store/limits.h"

namespace stasis::api {
namespace {

constexpr std::chrono::seconds kFirstAnswer{10};
constexpr std::chrono::seconds kExitTimeout{10};  // for a drained daemon to exit

const char kHowWithout[] =
    "`stasis daemon start` starts a new one; --no-daemon runs this command without it";

const char kWhatIsLeft[] =
    "The operation continues by itself or was rolled back; see `stasis ps -a` and `stasis "
    "recover`";

// Exists during a call that changes something. If this process runs out of threads during the call,
// the error message contains left_at_task_limit, which tells the user what may be unfinished.
class PendingChange {
 public:
  PendingChange() { left_at_task_limit = kWhatIsLeft; }
  ~PendingChange() { left_at_task_limit = nullptr; }
  PendingChange(const PendingChange&) = delete;
};

// Returns a connected socket, or an empty descriptor if nothing is at `path`. A path that is too
// long for a socket is an error if the user chose it. A derived path that is too long counts as
// unused, because the daemon derives the same path and cannot listen there.
Result<UniqueFd> ConnectTo(const std::string& path, bool chosen) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    if (!chosen) return UniqueFd();
    return Fail(Code::kInvalidArgument,
                fmt::format("the daemon's socket {} has too long a path: {} bytes, {} are allowed",
                            path, path.size(), sizeof address.sun_path - 1),
                "set daemon.socket (STASIS_SOCKET) to a shorter path");
  }
  path.copy(address.sun_path, path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return FailErrno(errno, "socket");
  // Limits the duration of connect(), which blocks if a hung daemon's backlog is full.
  const timeval patience{kFirstAnswer.count(), 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return UniqueFd();
    // A daemon whose socket is in a folder that this user cannot enter does not serve this user.
    Error error = ErrnoError(errno, "the daemon's socket " + path + " does not answer");
    error.code = errno == EACCES ? Code::kPermissionDenied : Code::kUnavailable;
    return Fail(std::move(error).WithHint(kHowWithout));
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return FailErrno(errno, "read the credentials of the listener at " + path);
  }
  if (peer.uid != 0 && peer.uid != ::geteuid()) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("a process of user {} is listening on the daemon's socket {}", peer.uid, path),
        "a daemon must belong to root or to you");
  }
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) return FailErrno(errno, "fcntl");
  return socket;
}

// Must be called before the daemon's first answer. The answer then proves that the daemon was still
// alive when the pidfd was opened, so its pid had not been reused.
DaemonProcess ListeningProcess(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  DaemonProcess listener;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) {
    return listener;
  }
  listener.pid = peer.pid;
  listener.pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  return listener;
}

}  // namespace

Error ToError(const grpc::ClientContext& context, const grpc::Status& status, bool changes) {
  const auto& trailers = context.GetServerTrailingMetadata();
  if (auto header = trailers.find(kErrorHeader); header != trailers.end()) {
    v1::Error message;
    if (message.ParseFromArray(header->second.data(), static_cast<int>(header->second.size()))) {
      return DecodeError(message);
    }
  }
  Error error;
  error.code = static_cast<Code>(status.error_code());
  error.message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    error.message = "the daemon has gone away: " + error.message;
    if (changes) {
      error.not_undone = true;
      error.hint = kWhatIsLeft;
    }
  }
  return error;
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Result<std::unique_ptr<Client::Link>> Client::Connect(const config::Settings& settings) {
  STASIS_ASSIGN(auto sockets, config::DaemonSockets(settings));
  for (const std::string& path : sockets) {
    STASIS_ASSIGN(UniqueFd socket, ConnectTo(path, !settings.daemon_socket.empty()));
    if (!socket) continue;
    auto link = std::make_unique<Link>();
    link->socket = path;
    link->daemon = ListeningProcess(socket.get());
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
    arguments.SetMaxReceiveMessageSize(64 << 20);
    link->channel = grpc::CreateCustomInsecureChannelFromFd("stasisd", socket.release(), arguments);
    link->stub = v1::Stasis::NewStub(link->channel);
    // Detects a hung daemon. The calls after this one may take a long time and have no deadline.
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kFirstAnswer);
    v1::DaemonStatus status;
    if (auto answered = link->stub->GetStatus(&context, {}, &status); !answered.ok()) {
      Error error = ToError(context, answered);
      if (error.code == Code::kUnavailable || error.code == Code::kDeadlineExceeded) {
        error.message = fmt::format("the daemon at {} does not answer: {}", path, error.message);
        error.hint = kHowWithout;
      }
      return Fail(std::move(error));
    }
    return link;
  }
  return std::unique_ptr<Link>();
}

Result<Client> Client::Open(const config::Settings& settings, ClientOptions options) {
  Client client;
  client.options_ = std::move(options);
  client.call_.settings = settings;
  STASIS_ASSIGN(client.call_.paths, config::OpenPaths(settings));
  client.call_.cancelled = client.options_.cancelled;
  if (client.options_.without_daemon) return client;
  STASIS_ASSIGN(client.link_, Connect(settings));
  if (client.link_ == nullptr) return client;
  v1::CallContext context;
  *context.mutable_folders() = FoldersOf(client.call_.paths);
  *context.mutable_settings() = SettingsText(settings, /*trusted=*/false);
  for (const auto& [key, text] : SettingsText(settings, /*trusted=*/true)) {
    (*context.mutable_settings())[key] = text;
  }
  client.link_->context = context.SerializeAsString();
  return client;
}

Result<Client> Client::OpenDaemon(const config::Settings& settings) {
  Client client;
  STASIS_ASSIGN(client.link_, Connect(settings));
  if (client.link_ != nullptr) return client;
  STASIS_ASSIGN(std::string socket, config::DaemonSocket(settings));
  STASIS_TRY(ConnectTo(socket, /*chosen=*/true));  // reports a path that is too long
  return Fail(Code::kNotFound, "no daemon is running: there is no socket " + socket,
              "`stasis daemon start` starts one");
}

template <class Request, class Response, class Rpc>
Result<Response> Client::Unary(const Request& request, Rpc rpc,
                               Result<Response> (*local)(Call&, const Request&), bool changes) {
  if (link_ == nullptr) return local(call_, request);
  grpc::ClientContext context;
  context.AddMetadata(kContextHeader, link_->context);
  Response response;
  std::optional<PendingChange> pending;
  if (changes) pending.emplace();
  const grpc::Status status = ((*link_->stub).*rpc)(&context, request, &response);
  if (!status.ok()) return Fail(ToError(context, status, changes));
  return response;
}

namespace {

// Cancels an operation once, when `fd` becomes readable.
class Canceller {
 public:
  Canceller(v1::Stasis::Stub& stub, int fd) : stub_(stub), fd_(fd) {}
  ~Canceller() {
    const uint64_t one = 1;
    if (done_) (void)!::write(done_.get(), &one, sizeof one);
  }
  // Must be called before the operation begins, because the start of the thread may fail, and an
  // operation without this thread could not be cancelled.
  Status Start() {
    if (fd_ < 0) return {};
    done_.Reset(::eventfd(0, EFD_CLOEXEC));
    if (!done_) return FailErrno(errno, "eventfd");
    STASIS_ASSIGN(thread_, Thread::Start([this] { Watch(); }));
    return {};
  }
  // Sets the operation to cancel.
  void SetOperation(const std::string& id) {
    std::lock_guard lock(mutex_);
    operation_ = id;
    if (asked_) Cancel(id);
  }

 private:
  void Watch() {
    pollfd waits[] = {{fd_, POLLIN, 0}, {done_.get(), POLLIN, 0}};
    while (::poll(waits, 2, -1) < 0 && errno == EINTR) {
    }
    if (waits[0].revents == 0) return;
    std::lock_guard lock(mutex_);
    asked_ = true;
    if (!operation_.empty()) Cancel(operation_);
  }
  void Cancel(const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kFirstAnswer);
    v1::CancelOperationRequest request;
    request.set_operation(id);
    v1::CancelOperationResponse response;
    // Errors are ignored, because an operation that has already ended reports its own result.
    (void)stub_.CancelOperation(&context, request, &response);
  }

  v1::Stasis::Stub& stub_;
  const int fd_;
  UniqueFd done_;
  std::mutex mutex_;
  std::string operation_;
  bool asked_ = false;
  Thread thread_;  // joined first
};

}  // namespace

template <class Request>
Result<v1::OperationResult> Client::Locally(const Request& request,
                                            Result<v1::OperationEvent> (*local)(Call&,
                                                                                const Request&),
                                            const OnEvent& on_event, const char* held_as) {
  std::unique_ptr<ShareHold> hold;
  if (options_.without_daemon && held_as != nullptr && !request.options().dry_run()) {
    const std::string target = TargetOf(request.SerializeAsString());
    STASIS_ASSIGN(hold, HoldShare(call_, target, held_as, options_.cancel_fd));
  }
  if (on_event) {
    call_.emit = [&](const google::protobuf::MessageLite& event) {
      on_event(static_cast<const v1::OperationEvent&>(event));
    };
  }
  auto last = local(call_, request);
  call_.emit = nullptr;
  if (hold) hold->Finish(last.has_value());
  if (!last) return Fail(std::move(last).error());
  return std::move(*last->mutable_result());
}

template <class Request, class Rpc>
Result<v1::OperationResult> Client::Stream(const Request& request, Rpc rpc,
                                           Result<v1::OperationEvent> (*local)(Call&,
                                                                               const Request&),
                                           const OnEvent& on_event, const char* held_as) {
  if (link_ == nullptr) return Locally(request, local, on_event, held_as);
  grpc::ClientContext context;
  context.AddMetadata(kContextHeader, link_->context);
  Canceller canceller(*link_->stub, options_.cancel_fd);
  STASIS_TRY(canceller.Start());
  const PendingChange pending;
  auto stream = rpc(*link_->stub, &context, request);
  v1::OperationEvent event;
  std::optional<v1::OperationResult> result;
  while (stream->Read(&event)) {
    if (event.has_begun()) {
      canceller.SetOperation(event.begun().operation());
    } else if (event.has_result()) {
      result = std::move(*event.mutable_result());
    } else if (on_event) {
      on_event(event);
    }
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) {
    return Fail(ToError(context, status, /*changes=*/true));
  }
  if (!result) return Fail(Code::kInternal, "the daemon ended the call without a result");
  return std::move(*result);
}

// A macro, because each stub method takes its own request type.
#define STASIS_STREAM(name)                                                              \
  Result<v1::OperationResult> Client::name(const v1::name##Request& request,             \
                                           const OnEvent& on_event) {                    \
    auto rpc = [](v1::Stasis::Stub& stub, grpc::ClientContext* context,                  \
                  const v1::name##Request& asked) { return stub.name(context, asked); }; \
    return Stream(request, rpc, &api::name, on_event, #name);                            \
  }
STASIS_STREAM(Suspend)
STASIS_STREAM(Resume)
STASIS_STREAM(Dump)
#undef STASIS_STREAM

std::string AbsoluteImage(const std::string& image) {
  if (containers::IsReference(image)) return image;
  const bool is_path =
      image.find('/') != image.npos || PathExists(image + "/" + store::kManifestName);
  return is_path ? AbsolutePath(image) : image;
}

Result<v1::OperationResult> Client::Restore(const v1::RestoreRequest& request,
                                            const OnEvent& on_event) {
  v1::RestoreRequest absolute = request;
  STASIS_ASSIGN(const auto remote, ParseRemoteImage(call_, request.source()));
  if (!remote) absolute.set_source(AbsoluteImage(request.source()));
  auto rpc = [](v1::Stasis::Stub& stub, grpc::ClientContext* context,
                const v1::RestoreRequest& asked) { return stub.Restore(context, asked); };
  return Stream(absolute, rpc, &api::Restore, on_event);
}

Result<v1::RecoverResponse> Client::Recover() {
  return Unary(v1::RecoverRequest(), &v1::Stasis::Stub::Recover, &api::Recover,
               /*changes=*/true);
}

Result<v1::ListContainersResponse> Client::ListContainers(
    const v1::ListContainersRequest& request) {
  return Unary(request, &v1::Stasis::Stub::ListContainers, &api::ListContainers);
}

Result<v1::ManageJobResponse> Client::ManageJob(const v1::ManageJobRequest& request) {
  // Check in this process, and not in the daemon, because the check needs the ancestors of the
  // command.
  STASIS_ASSIGN(const process::HostPid pid, jobs::ParsePid(request.target()));
  STASIS_TRY(Annotate(jobs::CheckNotAbove(pid), "cannot manage " + request.target()));
  return Unary(request, &v1::Stasis::Stub::ManageJob, &api::ManageJob, /*changes=*/true);
}

Result<v1::ListJobsResponse> Client::ListJobs(const v1::ListJobsRequest& request) {
  return Unary(request, &v1::Stasis::Stub::ListJobs, &api::ListJobs);
}

Result<v1::Job> Client::GetJob(const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(job);
  return Unary(request, &v1::Stasis::Stub::GetJob, &api::GetJob);
}

Result<v1::Job> Client::WaitJob(const std::string& job) {
  v1::WaitJobRequest request;
  request.set_job(job);
  return Unary(request, &v1::Stasis::Stub::WaitJob, &api::WaitJob);
}

Result<v1::KillJobResponse> Client::KillJob(const v1::KillJobRequest& request) {
  return Unary(request, &v1::Stasis::Stub::KillJob, &api::KillJob, /*changes=*/true);
}

Status Client::DeleteJob(const std::string& job) {
  v1::DeleteJobRequest request;
  request.set_job(job);
  STASIS_TRY(Unary(request, &v1::Stasis::Stub::DeleteJob, &api::DeleteJob, /*changes=*/true));
  return {};
}

Result<v1::ListCheckpointsResponse> Client::ListCheckpoints(const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  return Unary(request, &v1::Stasis::Stub::ListCheckpoints, &api::ListCheckpoints);
}

namespace {

template <class Request, class Response, class Rpc>
Result<Response> AskDaemon(v1::Stasis::Stub& stub, const Request& request, Rpc rpc,
                           const std::string& header = {}) {
  grpc::ClientContext context;
  if (!header.empty()) context.AddMetadata(kContextHeader, header);
  Response response;
  const grpc::Status status = (stub.*rpc)(&context, request, &response);
  if (!status.ok()) return Fail(ToError(context, status));
  return response;
}

}  // namespace

Result<v1::DaemonStatus> Client::GetStatus() {
  return AskDaemon<v1::GetStatusRequest, v1::DaemonStatus>(*link_->stub, {},
                                                           &v1::Stasis::Stub::GetStatus);
}

Result<v1::ListOperationsResponse> Client::ListOperations() {
  return AskDaemon<v1::ListOperationsRequest, v1::ListOperationsResponse>(
      *link_->stub, {}, &v1::Stasis::Stub::ListOperations);
}

Result<v1::ListSharesResponse> Client::ListShares(uint64_t after_version) {
  v1::ListSharesRequest request;
  request.set_version(after_version);
  return AskDaemon<v1::ListSharesRequest, v1::ListSharesResponse>(
      *link_->stub, request, &v1::Stasis::Stub::ListShares, link_->context);
}

Status Client::PinShare(const std::string& job, bool pinned) {
  v1::PinShareRequest request;
  request.set_job(job);
  request.set_pinned(pinned);
  STASIS_TRY((AskDaemon<v1::PinShareRequest, v1::PinShareResponse>(
      *link_->stub, request, &v1::Stasis::Stub::PinShare, link_->context)));
  return {};
}

Status Client::NoteShare(bool starting) {
  v1::NoteShareRequest request;
  request.set_starting(starting);
  STASIS_TRY((AskDaemon<v1::NoteShareRequest, v1::NoteShareResponse>(
      *link_->stub, request, &v1::Stasis::Stub::NoteShare, link_->context)));
  return {};
}

Result<bool> Client::Drain(double timeout_s) {
  v1::DrainRequest request;
  request.set_timeout_s(timeout_s);
  STASIS_TRY((AskDaemon<v1::DrainRequest, v1::DrainResponse>(*link_->stub, request,
                                                             &v1::Stasis::Stub::Drain)));
  const DaemonProcess& daemon = link_->daemon;
  if (!daemon.pidfd) return false;
  pollfd end{daemon.pidfd.get(), POLLIN, 0};
  const Deadline deadline = Deadline::In(kExitTimeout);
  if (TEMP_FAILURE_RETRY(::poll(&end, 1, deadline.PollTimeout())) > 0) return true;
  return Fail(Code::kDeadlineExceeded,
              fmt::format("the daemon is drained, but its process {} has not exited in {} s",
                          daemon.pid, kExitTimeout.count()),
              fmt::format("No operation is in progress, so `kill -9 {}` is safe; jobs continue",
                          daemon.pid));
}

}  // namespace stasis::api
