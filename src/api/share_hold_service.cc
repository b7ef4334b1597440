#include "api/share_hold_service.h"

#include <atomic>

#include "api/share_hold_call.h"

namespace stasis::api {
namespace {

class HoldReactor final
    : public grpc::ServerBidiReactor<v1::HoldShareRequest, v1::HoldShareResponse> {
 public:
  HoldReactor(DaemonContext& daemon, const IdentifyCaller& identify,
              grpc::CallbackServerContext& context)
      : daemon_(daemon), context_(context), hold_(Outside()) {
    if (Status begun = Begin(identify); begun) {
      StartRead(&request_);
    } else {
      End(begun);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End({});  // the caller has closed the stream
    auto ended = hold_.Receive(request_);
    if (!ended) return End(Fail(std::move(ended).error()));
    if (*ended) return End({});
    StartRead(&request_);
  }
  void OnCancel() override { End({}); }
  void OnDone() override {
    if (!call_.empty()) daemon_.operations.End(call_);
    delete this;
  }

 private:
  // Holds have limits of their own, and a drain does not wait for them.
  Status Begin(const IdentifyCaller& identify) {
    STASIS_ASSIGN(caller_, identify(context_));
    if (!caller_.local) {
      return Fail(Code::kPermissionDenied, "HoldShare serves only commands on this machine");
    }
    STASIS_ASSIGN(work_, WorkOf(daemon_, caller_, context_));
    STASIS_ASSIGN(call_, daemon_.operations.BeginHold(caller_));
    return {};
  }

  ShareHoldCall::Outside Outside() {
    return {
        [this](const v1::HoldShareRequest::Begin& begin) {
          v1::AnyTarget target;
          target.set_target(begin.target());
          v1::WorkerRequest work = work_;
          work.set_method(begin.method());
          work.set_request(target.SerializeAsString());
          return daemon_.share->ProgramOf(caller_, work);
        },
        [this](const std::string& program, const std::string& method, std::function<void()> begun) {
          return daemon_.share->BeginCall(program, method, std::move(begun));
        },
        [share = daemon_.share.get()](uint64_t token, bool ok) { share->EndCall(token, ok); },
        [this](bool shared) {
          response_.set_shared(shared);
          StartWrite(&response_);
        }};
  }

  // gRPC may delete this object when this function has been called.
  void End(const Status& status) {
    hold_.End(false);
    if (finished_.exchange(true)) return;
    Finish(status ? grpc::Status::OK : ToStatus(context_, status.error()));
  }

  DaemonContext& daemon_;
  grpc::CallbackServerContext& context_;
  Caller caller_;
  v1::WorkerRequest work_;
  std::string call_;  // in the operation table
  v1::HoldShareRequest request_;
  v1::HoldShareResponse response_;
  ShareHoldCall hold_;
  std::atomic<bool> finished_{false};
};

}  // namespace

grpc::ServerBidiReactor<v1::HoldShareRequest, v1::HoldShareResponse>* ServeShareHold(
    DaemonContext& daemon, const IdentifyCaller& identify, grpc::CallbackServerContext& context) {
  return new HoldReactor(daemon, identify, context);
}

}  // namespace stasis::api
