#include "api/share_watch.h"

#include <memory>

#include "api/waiting_reactor.h"

namespace stasis::api {

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
  ShareWaiters& waiters = daemon.share->waiters();
  const uint64_t number = waiters.NewNumber();
  auto* reactor = new WaitingReactor(daemon.operations, std::move(*call),
                                     [&waiters, number] { waiters.Remove(number); });
  // gRPC may delete the reactor as soon as the call can end.
  const auto handle = reactor->handle();
  waiters.Add(number, request.version(), [handle, &daemon, &response, caller = *caller] {
    handle->End([&] {
      response = daemon.share->List(caller);
      return grpc::Status::OK;
    });
  });
  if (handle->ended()) waiters.Remove(number);  // cancelled before Add
  return reactor;
}

}  // namespace stasis::api
