#include "api/grpc_service.h"

#include <unistd.h>

#include <functional>

#include "api/relay.h"
#include "api/share_hold_service.h"
#include "api/share_note.h"
#include "api/share_watch.h"
#include "api/usage_error.h"
#include "api/worker_credentials.h"
#include "base/thread.h"

namespace stasis::api {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

constexpr double kLongestDrainS = 7 * 86400.0;

// Drains in a background thread. The daemon ends when the answer has been sent.
class DrainReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit DrainReactor(DaemonContext& daemon) : daemon_(daemon) {}
  void Begin(CallbackServerContext& context, double timeout_s) {
    auto drain = [this, &context, timeout_s] {
      const Deadline deadline =
          timeout_s > 0 ? Deadline::In(config::Milliseconds(timeout_s)) : Deadline();
      Status drained = daemon_.operations.Drain(deadline);
      drained_ = drained.has_value();
      Finish(drained ? grpc::Status::OK : ToStatus(context, drained.error()));
    };
    if (auto thread = Thread::Start(drain); thread) {
      std::move(*thread).Detach();
    } else {
      Finish(ToStatus(context, thread.error()));
    }
  }
  void OnDone() override {
    if (drained_) daemon_.stop();
    delete this;
  }

 private:
  DaemonContext& daemon_;
  bool drained_ = false;
};

// Adds layers to gRPC's service class. Each makes one method asynchronous.
template <class Base, template <class> class... Layers>
struct Layered {
  using Type = Base;
};
template <class Base, template <class> class First, template <class> class... Others>
struct Layered<Base, First, Others...> {
  using Type = First<typename Layered<Base, Others...>::Type>;
};

// The methods that the daemon answers itself.
#define STASIS_OWN(name) v1::Stasis::WithCallbackMethod_##name
using Own = Layered<v1::Stasis::Service, STASIS_OWN(ListOperations), STASIS_OWN(CancelOperation),
                    STASIS_OWN(GetStatus), STASIS_OWN(Drain), STASIS_OWN(ListShares),
                    STASIS_OWN(PinShare), STASIS_OWN(NoteShare), STASIS_OWN(HoldShare)>::Type;
#undef STASIS_OWN

// The methods that the daemon forwards as bytes.
#define STASIS_RAW(name) v1::Stasis::WithRawCallbackMethod_##name
using Forwarded =
    Layered<Own, STASIS_RAW(Suspend), STASIS_RAW(Resume), STASIS_RAW(Dump), STASIS_RAW(Restore),
            STASIS_RAW(Recover), STASIS_RAW(Run), STASIS_RAW(ManageJob), STASIS_RAW(ListJobs),
            STASIS_RAW(GetJob), STASIS_RAW(WaitJob), STASIS_RAW(KillJob), STASIS_RAW(DeleteJob),
            STASIS_RAW(ListCheckpoints), STASIS_RAW(ReadLog), STASIS_RAW(ListImages),
            STASIS_RAW(InspectImage), STASIS_RAW(VerifyImage), STASIS_RAW(DeleteImages),
            STASIS_RAW(CollectGarbage), STASIS_RAW(PushImage), STASIS_RAW(PullImage),
            STASIS_RAW(AddRepository), STASIS_RAW(ListRepositories), STASIS_RAW(CheckRepository),
            STASIS_RAW(RemoveRepository), STASIS_RAW(ListArenas), STASIS_RAW(ReserveArena),
            STASIS_RAW(FreeArenas), STASIS_RAW(CreateKey), STASIS_RAW(ShowKey), STASIS_RAW(JoinKey),
            STASIS_RAW(ListGpus), STASIS_RAW(GpuStep), STASIS_RAW(ListContainers),
            STASIS_RAW(Check)>::Type;
#undef STASIS_RAW

class Service final : public Forwarded {
 public:
  Service(DaemonContext& daemon, IdentifyCaller identify)
      : daemon_(daemon), identify_(std::move(identify)) {}

#define STASIS_OPERATION(name)                                                     \
  grpc::ServerWriteReactor<ByteBuffer>* name(CallbackServerContext* context,       \
                                             const ByteBuffer* request) override { \
    return RelayOperation(daemon_, identify_, *context, #name, *request);          \
  }
#define STASIS_UNARY(name)                                                                  \
  grpc::ServerUnaryReactor* name(CallbackServerContext* context, const ByteBuffer* request, \
                                 ByteBuffer* response) override {                           \
    return RelayUnary(daemon_, identify_, *context, #name, *request, *response);            \
  }
  STASIS_OPERATION(Suspend)
  STASIS_OPERATION(Resume)
  STASIS_OPERATION(Dump)
  STASIS_OPERATION(Restore)
  STASIS_OPERATION(PushImage)
  STASIS_OPERATION(PullImage)
  grpc::ServerWriteReactor<ByteBuffer>* ReadLog(CallbackServerContext* context,
                                                const ByteBuffer* request) override {
    return RelayLog(daemon_, identify_, *context, *request);
  }
  STASIS_UNARY(Recover)
  STASIS_UNARY(Run)
  STASIS_UNARY(ManageJob)
  STASIS_UNARY(ListJobs)
  STASIS_UNARY(GetJob)
  STASIS_UNARY(WaitJob)
  STASIS_UNARY(KillJob)
  STASIS_UNARY(DeleteJob)
  STASIS_UNARY(ListCheckpoints)
  STASIS_UNARY(ListImages)
  STASIS_UNARY(InspectImage)
  STASIS_UNARY(VerifyImage)
  STASIS_UNARY(DeleteImages)
  STASIS_UNARY(CollectGarbage)
  STASIS_UNARY(AddRepository)
  STASIS_UNARY(ListRepositories)
  STASIS_UNARY(CheckRepository)
  STASIS_UNARY(RemoveRepository)
  STASIS_UNARY(ListArenas)
  STASIS_UNARY(ReserveArena)
  STASIS_UNARY(FreeArenas)
  STASIS_UNARY(CreateKey)
  STASIS_UNARY(ShowKey)
  STASIS_UNARY(JoinKey)
  STASIS_UNARY(ListGpus)
  STASIS_UNARY(GpuStep)
  STASIS_UNARY(ListContainers)
  STASIS_UNARY(Check)
#undef STASIS_OPERATION
#undef STASIS_UNARY

  grpc::ServerUnaryReactor* ListOperations(CallbackServerContext* context,
                                           const v1::ListOperationsRequest*,
                                           v1::ListOperationsResponse* response) override {
    return Answer(*context, [&](const Caller& caller) -> Status {
      for (auto& operation : daemon_.operations.List(caller)) {
        *response->add_operations() = std::move(operation);
      }
      return {};
    });
  }

  grpc::ServerUnaryReactor* CancelOperation(CallbackServerContext* context,
                                            const v1::CancelOperationRequest* request,
                                            v1::CancelOperationResponse*) override {
    return Answer(*context, [&](const Caller& caller) {
      return daemon_.operations.Cancel(caller, request->operation());
    });
  }

  grpc::ServerUnaryReactor* GetStatus(CallbackServerContext* context, const v1::GetStatusRequest*,
                                      v1::DaemonStatus* response) override {
    return Answer(*context, [&](const Caller&) -> Status {
      response->set_version(STASIS_VERSION);
      response->set_pid(::getpid());
      response->set_uid(::geteuid());
      response->set_started_ms(daemon_.started_ms);
      response->set_draining(daemon_.operations.draining());
      response->set_operations(static_cast<uint32_t>(daemon_.operations.count()));
      response->set_socket(daemon_.socket_path);
      response->set_listen(daemon_.listen_address);
      response->set_metrics(daemon_.metrics_address);
      return {};
    });
  }

  grpc::ServerUnaryReactor* ListShares(CallbackServerContext* context,
                                       const v1::ListSharesRequest* request,
                                       v1::ListSharesResponse* response) override {
    return AnswerShares(daemon_, identify_, *context, *request, *response);
  }

  grpc::ServerUnaryReactor* PinShare(CallbackServerContext* context,
                                     const v1::PinShareRequest* request,
                                     v1::PinShareResponse*) override {
    return Answer(*context, [&](const Caller& caller) -> Status {
      STASIS_ASSIGN(const auto work, WorkOf(daemon_, caller, *context));
      return daemon_.share->Pin(caller, work, *request);
    });
  }

  grpc::ServerUnaryReactor* NoteShare(CallbackServerContext* context,
                                      const v1::NoteShareRequest* request,
                                      v1::NoteShareResponse*) override {
    return NoteShareOf(daemon_, identify_, *context, *request);
  }

  grpc::ServerBidiReactor<v1::HoldShareRequest, v1::HoldShareResponse>* HoldShare(
      CallbackServerContext* context) override {
    return ServeShareHold(daemon_, identify_, *context);
  }

  grpc::ServerUnaryReactor* Drain(CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse*) override {
    auto* reactor = new DrainReactor(daemon_);
    auto caller = identify_(*context);
    const double seconds = request->timeout_s();
    Status may = !caller ? Status(Fail(std::move(caller).error()))
                 : !MayManage(*caller, ::geteuid())
                     ? Status(Fail(Code::kPermissionDenied,
                                   "only root and the daemon's own user may drain it"))
                 : !(seconds >= 0 && seconds <= kLongestDrainS)
                     ? Status(FailUsage("the timeout of a drain is out of range"))
                     : Status();
    if (may) {
      reactor->Begin(*context, seconds);
    } else {
      reactor->Finish(ToStatus(*context, may.error()));
    }
    return reactor;
  }

 private:
  grpc::ServerUnaryReactor* Answer(CallbackServerContext& context,
                                   const std::function<Status(const Caller&)>& answer) {
    auto* reactor = context.DefaultReactor();
    auto caller = identify_(context);
    Status done = caller ? answer(*caller) : Status(Fail(std::move(caller).error()));
    reactor->Finish(done ? grpc::Status::OK : ToStatus(context, done.error()));
    return reactor;
  }

  DaemonContext& daemon_;
  const IdentifyCaller identify_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeService(DaemonContext& daemon, IdentifyCaller identify) {
  return std::make_unique<Service>(daemon, std::move(identify));
}

}  // namespace stasis::api
