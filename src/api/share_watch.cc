#include "api/share_watch.h"

#include <chrono>
#include <memory>
#include <mutex>

namespace stasis::api {
namespace {

// Waits for a change, for the end of the caller's patience, or for its disconnection.
class WaitingReactor final : public grpc::ServerUnaryReactor {
 public:
  // Set for as long as the reactor can be finished. A callback may come after its end.
  struct Handle {
    std::mutex mutex;
    WaitingReactor* reactor = nullptr;
  };

  WaitingReactor(DaemonContext& daemon, Caller caller, v1::ListSharesResponse& response)
      : daemon_(daemon), caller_(std::move(caller)), response_(response) {
    handle_->reactor = this;
  }

  void Await(uint64_t version) {
    daemon_.share->OnChange(version, [handle = handle_] { End(*handle, /*changed=*/true); });
  }
  void OnCancel() override { End(*handle_, /*changed=*/false); }
  void OnDone() override { delete this; }

 private:
  static void End(Handle& handle, bool changed) {
    std::lock_guard lock(handle.mutex);
    WaitingReactor* reactor = std::exchange(handle.reactor, nullptr);
    if (reactor == nullptr) return;
    if (changed) reactor->response_ = reactor->daemon_.share->List(reactor->caller_);
    reactor->Finish(changed ? grpc::Status::OK : grpc::Status::CANCELLED);
  }

  DaemonContext& daemon_;
  const Caller caller_;
  v1::ListSharesResponse& response_;
  const std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
};

}  // namespace

grpc::ServerUnaryReactor* AnswerShares(DaemonContext& daemon, const IdentifyCaller& identify,
                                       grpc::CallbackServerContext& context,
                                       const v1::ListSharesRequest& request,
                                       v1::ListSharesResponse& response) {
  auto caller = identify(context);
  if (!caller) {
    auto* reactor = context.DefaultReactor();
    reactor->Finish(ToStatus(context, caller.error()));
    return reactor;
  }
  if (request.version() == 0) {
    response = daemon.share->List(*caller);
    auto* reactor = context.DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  auto* reactor = new WaitingReactor(daemon, std::move(*caller), response);
  reactor->Await(request.version());
  return reactor;
}

}  // namespace stasis::api
