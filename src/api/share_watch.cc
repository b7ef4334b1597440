#include "api/share_watch.h"

#include <chrono>
#include <memory>
#include <mutex>

namespace stasis::api {
namespace {

// Waits for a change, or for the end of the call.
class WaitingReactor final : public grpc::ServerUnaryReactor {
 public:
  // Set for as long as the reactor can be finished. A callback may come after its end.
  struct Handle {
    std::mutex mutex;
    WaitingReactor* reactor = nullptr;
  };

  // `call` is the call's id in the operation table.
  WaitingReactor(DaemonContext& daemon, Caller caller, std::string call,
                 v1::ListSharesResponse& response)
      : daemon_(daemon), caller_(std::move(caller)), call_(std::move(call)), response_(response) {
    handle_->reactor = this;
  }

  void Await(uint64_t version) {
    // gRPC may delete this object as soon as the call can end.
    ShareWaiters& waiters = daemon_.share->waiters();
    const uint64_t number = number_;
    const std::shared_ptr<Handle> handle = handle_;
    waiters.Add(number, version, [handle] { End(*handle, /*changed=*/true); });
    std::lock_guard lock(handle->mutex);
    if (handle->reactor == nullptr) waiters.Remove(number);  // cancelled before Add
  }
  void OnCancel() override {
    daemon_.share->waiters().Remove(number_);
    End(*handle_, /*changed=*/false);
  }
  void OnDone() override {
    daemon_.operations.End(call_);
    delete this;
  }

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
  const std::string call_;
  const uint64_t number_ = daemon_.share->waiters().NewNumber();
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
  auto call = daemon.operations.Begin(*caller, "ListShares", /*operation=*/false, "");
  if (!call) {
    auto* reactor = context.DefaultReactor();
    reactor->Finish(ToStatus(context, call.error()));
    return reactor;
  }
  auto* reactor = new WaitingReactor(daemon, std::move(*caller), std::move(*call), response);
  reactor->Await(request.version());
  return reactor;
}

}  // namespace stasis::api
