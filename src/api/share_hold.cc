#include "api/share_hold.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>

#include "api/client.h"
#include "api/client_link.h"
#include "api/headers.h"
#include "base/fd.h"
#include "base/thread.h"
#include "containers/reference.h"
#include "jobs/store.h"

namespace stasis::api {
namespace {

// For the daemon's end of a hold. Later the daemon finds out by the closed connection.
constexpr int kFinishTimeoutMs = 5000;

// Cancels a call when a descriptor becomes readable or a time has passed, as long as it exists.
class CancelLater {
 public:
  explicit CancelLater(grpc::ClientContext& context) : context_(context) {}
  ~CancelLater() {
    const uint64_t one = 1;
    if (done_) (void)!::write(done_.get(), &one, sizeof one);
  }
  CancelLater(const CancelLater&) = delete;
  // `fd` -1: none. `timeout_ms` -1: never.
  Status Start(int fd, int timeout_ms) {
    done_.Reset(::eventfd(0, EFD_CLOEXEC));
    if (!done_) return FailErrno(errno, "eventfd");
    STASIS_ASSIGN(thread_, Thread::Start([this, fd, timeout_ms] {
                    pollfd waits[] = {{fd, POLLIN, 0}, {done_.get(), POLLIN, 0}};
                    while (::poll(waits, 2, timeout_ms) < 0 && errno == EINTR) {
                    }
                    if (waits[1].revents == 0) context_.TryCancel();
                  }));
    return {};
  }

 private:
  grpc::ClientContext& context_;
  UniqueFd done_;
  Thread thread_;  // joined first
};

class HoldStream {
 public:
  HoldStream(v1::Stasis::Stub& stub, const std::string& context) {
    context_.AddMetadata(kContextHeader, context);
    stream_ = stub.HoldShare(&context_);
  }
  ~HoldStream() { Finish(false); }

  // Returns false if there is nothing to hold.
  Result<bool> Begin(const std::string& target, const std::string& method, int cancel_fd) {
    CancelLater cancel(context_);
    STASIS_TRY(cancel.Start(cancel_fd, -1));
    v1::HoldShareRequest request;
    request.mutable_begin()->set_target(target);
    request.mutable_begin()->set_method(method);
    v1::HoldShareResponse response;
    if (stream_->Write(request) && stream_->Read(&response)) return response.shared();
    const grpc::Status status = stream_->Finish();
    stream_.reset();
    switch (status.error_code()) {
      case grpc::StatusCode::UNAVAILABLE:    // the daemon has ended
      case grpc::StatusCode::UNIMPLEMENTED:  // it is of an earlier version
        return false;
      case grpc::StatusCode::CANCELLED:
        return Fail(Code::kCancelled, "cancelled");
      default:
        return Fail(ToError(context_, status));
    }
  }

  void Finish(bool ok) {
    if (stream_ == nullptr) return;
    CancelLater cancel(context_);
    if (!cancel.Start(-1, kFinishTimeoutMs)) context_.TryCancel();
    v1::HoldShareRequest request;
    request.mutable_end()->set_ok(ok);
    v1::HoldShareResponse response;
    if (stream_->Write(request)) stream_->WritesDone();
    while (stream_->Read(&response)) {
    }
    (void)stream_->Finish();
    stream_.reset();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::HoldShareRequest, v1::HoldShareResponse>> stream_;
};

// Returns whether the target may share GPUs, as far as the caller's jobs show.
bool MayShareGpus(const Paths& paths, const std::string& target) {
  if (containers::IsReference(target)) return false;
  const jobs::Store store(paths.jobs());
  const bool is_pid = target.find_first_not_of("0123456789") == target.npos;
  if (!is_pid) {
    auto job = store.Load(target);
    return job && !job->share.empty();
  }
  // The process may be below a job's root, and for root it may belong to another user's job.
  if (::geteuid() == 0) return true;
  const auto listed = store.List().value_or(std::vector<jobs::Store::Listed>());
  return std::any_of(listed.begin(), listed.end(),
                     [](const auto& entry) { return entry.job && !entry.job->share.empty(); });
}

}  // namespace

// A hold with its connection to the daemon.
class DaemonHold final : public ShareHold {
 public:
  explicit DaemonHold(Client client)
      : client_(std::move(client)), stream_(*client_.link_->stub, client_.link_->context) {}
  Result<bool> Begin(const std::string& target, const std::string& method, int cancel_fd) {
    return stream_.Begin(target, method, cancel_fd);
  }
  void Finish(bool ok) override { stream_.Finish(ok); }

 private:
  Client client_;
  HoldStream stream_;
};

Result<std::unique_ptr<ShareHold>> HoldShare(const Call& call, const std::string& target,
                                             const std::string& method, int cancel_fd) {
  std::unique_ptr<ShareHold> none;
  if (!MayShareGpus(call.paths, target)) return none;
  auto client = Client::Open(call.settings, {});
  // A daemon that does not answer must not keep this process from its work.
  if (!client || !client->has_daemon()) return none;
  auto hold = std::make_unique<DaemonHold>(std::move(*client));
  STASIS_ASSIGN(const bool holds, hold->Begin(target, method, cancel_fd));
  if (!holds) return none;
  return std::unique_ptr<ShareHold>(std::move(hold));
}

}  // namespace stasis::api
