#include "api/relay.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "api/caller_cgroups.h"
#include "api/error_message.h"
#include "api/headers.h"
#include "api/methods.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "api/worker.h"
#include "api/worker_credentials.h"
#include "base/log.h"

namespace stasis::api {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

// Limit for the status text, which is sent with three bytes for each byte that is not ASCII.
constexpr size_t kMaxStatusBytes = 800;

ByteBuffer ToBuffer(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return ByteBuffer(&slice, 1);
}

std::string ToBytes(const ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// Forwards one call to a worker.
class Relay {
 public:
  Relay(DaemonContext& daemon, const IdentifyCaller& identify, CallbackServerContext& context,
        std::string method)
      : daemon_(daemon), identify_(identify), context_(context), method_(std::move(method)) {}

 protected:
  using OnReply = std::function<void(Result<std::string>)>;

  // Runs when the answer was delivered or the caller has disconnected. The call counts against the
  // limits until then.
  ~Relay() {
    if (!id_.empty()) daemon_.operations.End(id_);
  }

  Status Begin(const ByteBuffer& request, Worker::OnEvent on_event, OnReply on_end,
               const std::function<void(const std::string& id)>& begun) {
    Status status = TryBegin(request, std::move(on_event), std::move(on_end), begun);
    if (status) return status;
    daemon_.metrics.CountRejected(method_, status.error());
    log::Fields fields = {{"method", method_}};
    if (!id_.empty()) fields.emplace_back("operation", id_);
    if (caller_) fields.emplace_back("uid", uint64_t{caller_->uid});
    for (auto& field : log::ErrorFields(status.error())) fields.push_back(std::move(field));
    log::Write(log::Level::kWarn, "refused", fields);
    return status;
  }

  // Called when the caller has disconnected. Kills the worker unless it is running an operation.
  void OnDisconnect() {
    std::lock_guard lock(mutex_);
    if (operation_) return;
    disconnected_ = true;
    if (worker_ != nullptr) worker_->Abandon();
  }

  void PhaseEnded(const v1::PhaseReport& phase) {
    daemon_.metrics.ObservePhase(VerbOf(method_), phase);
  }

  DaemonContext& daemon_;
  const IdentifyCaller& identify_;
  CallbackServerContext& context_;
  const std::string method_;
  std::string id_;

 private:
  Status TryBegin(const ByteBuffer& request, Worker::OnEvent on_event, OnReply on_end,
                  const std::function<void(const std::string& id)>& begun) {
    const std::string bytes = ToBytes(request);
    const auto traits = TraitsOf(method_, bytes);
    if (!traits) return Fail(Code::kUnimplemented, "there is no method " + method_);
    operation_ = traits->operation;
    STASIS_ASSIGN(const Caller caller, identify_(context_));
    caller_ = caller;
    STASIS_ASSIGN(v1::WorkerRequest work, WorkOf(daemon_, caller, context_));
    work.set_method(method_);
    work.set_request(bytes);
    const std::string target = traits->has_target ? TargetOf(work.request()) : "";
    STASIS_ASSIGN(id_, daemon_.operations.Begin(caller, method_, operation_, target));
    work.set_operation(id_);
    daemon_.usage.Add(caller.uid, work);
    work_ = work;
    work_.clear_request();
    if (traits->starts_program && caller.local) {
      STASIS_ASSIGN(auto groups, CgroupsOfCaller(context_.peer(), caller));
      for (std::string& folder : groups) work.add_control_groups(std::move(folder));
    }
    begun(id_);
    // The handlers may run before this call returns.
    auto started = std::make_shared<std::mutex>();
    auto ended = [this, target, started, on_end = std::move(on_end)](Result<std::string> reply,
                                                                     bool lost) {
      // This object may be deleted below, so StartWorker must have returned.
      std::unique_lock(*started).unlock();
      daemon_.operations.Finish(id_);
      if (lost && operation_) DescribeUnfinished(target, reply.error());
      RecordEnd(id_, reply, lost);
      TellShare(reply.has_value());
      on_end(std::move(reply));
    };
    const std::string shared = operation_ ? daemon_.share->ProgramOf(caller, work) : "";
    if (shared.empty()) return StartWorker(work, std::move(on_event), std::move(ended));
    // The program may be in the middle of a swap, or wait for room.
    auto begin = [this, work, started, on_event, ended] {
      Status status;
      {
        std::lock_guard lock(*started);
        status = StartWorker(work, on_event, ended);
      }
      if (!status) ended(Fail(std::move(status).error()), false);
    };
    // gRPC deletes this object only after the constructor has returned.
    SetShareToken(daemon_.share->BeginCall(shared, work.method(), std::move(begin)));
    return {};
  }

  Status StartWorker(const v1::WorkerRequest& work, Worker::OnEvent on_event, Worker::OnEnd ended) {
    auto worker = Worker::Start(work, std::move(on_event), std::move(ended));
    if (!worker) {
      daemon_.operations.Finish(id_);
      return Fail(std::move(worker).error());
    }
    std::lock_guard lock(mutex_);
    worker_ = *worker;
    daemon_.operations.SetWorker(id_, worker_);
    if (disconnected_) worker_->Abandon();
    return {};
  }

  // The token of ShareService::BeginCall may come after the end of the call.
  void SetShareToken(uint64_t token) {
    std::optional<bool> ended_ok;
    {
      std::lock_guard lock(share_mutex_);
      share_token_ = token;
      ended_ok = ended_ok_;
    }
    if (ended_ok) daemon_.share->EndCall(token, *ended_ok);
  }

  void TellShare(bool ok) {
    if (!operation_) return;
    uint64_t token = 0;
    {
      std::lock_guard lock(share_mutex_);
      ended_ok_ = ok;
      token = share_token_;
    }
    daemon_.share->EndCall(token, ok);
    daemon_.share->JobsMayHaveChanged(*caller_, work_);
  }

  void RecordEnd(const std::string& id, const Result<std::string>& reply, bool lost) {
    daemon_.metrics.CountCall(method_, reply, lost);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started_;
    if (operation_) {
      daemon_.metrics.ObserveOperation(VerbOf(method_), seconds.count(), reply);
    }
    // A worker that has answered logs its own end.
    if (!lost) return;
    log::Fields fields = {{"operation", id},
                          {"verb", VerbOf(method_)},
                          {"uid", uint64_t{caller_->uid}},
                          {"outcome", std::string("lost")},
                          {"seconds", seconds.count()}};
    for (auto& field : log::ErrorFields(reply.error())) fields.push_back(std::move(field));
    log::Write(operation_ ? log::Level::kError : log::Level::kDebug, "ended", fields);
  }

  // Tells the caller that a lost worker may have left its operation unfinished.
  void DescribeUnfinished(const std::string& target, Error& error) const {
    error.not_undone = true;
    error.hint = "`stasis recover` finishes the operation or rolls it back";
    error.context.push_back("cannot " + VerbOf(method_) +
                            (target.empty() ? "" : " " + Utf8(target.substr(0, 256))));
  }

  std::mutex mutex_;
  std::shared_ptr<Worker> worker_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::optional<Caller> caller_;
  v1::WorkerRequest work_;  // without its request
  bool operation_ = false;
  bool disconnected_ = false;
  std::mutex share_mutex_;
  uint64_t share_token_ = 0;
  std::optional<bool> ended_ok_;
};

class UnaryRelay final : public grpc::ServerUnaryReactor, private Relay {
 public:
  UnaryRelay(DaemonContext& daemon, const IdentifyCaller& identify, CallbackServerContext& context,
             std::string method, const ByteBuffer& request, ByteBuffer& response)
      : Relay(daemon, identify, context, std::move(method)) {
    auto on_end = [this, &response](Result<std::string> reply) {
      if (reply) response = ToBuffer(*reply);
      Finish(reply ? grpc::Status::OK : ToStatus(context_, reply.error()));
    };
    Status begun = Begin(
        request, [](const std::string&) {}, on_end, [](const std::string&) {});
    if (!begun) Finish(ToStatus(context, begun.error()));
  }
  void OnCancel() override { OnDisconnect(); }
  void OnDone() override { delete this; }
};

// Never delays the worker: if the client is slow, newer progress replaces unsent progress.
class OperationRelay final : public grpc::ServerWriteReactor<ByteBuffer>, private Relay {
 public:
  OperationRelay(DaemonContext& daemon, const IdentifyCaller& identify,
                 CallbackServerContext& context, std::string method, const ByteBuffer& request)
      : Relay(daemon, identify, context, std::move(method)) {
    auto begun = [this](const std::string& id) {
      v1::OperationEvent event;
      event.mutable_begun()->set_operation(id);
      Push(event.SerializeAsString(), /*replaceable=*/false);
    };
    Status began = Begin(
        request, [this](std::string bytes) { Event(std::move(bytes)); },
        [this](Result<std::string> reply) { Last(std::move(reply)); }, begun);
    if (!began) Last(Fail(std::move(began).error()));
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(write_mutex_);
      writing_ = false;
      if (!ok) write_failed_ = true;
      WriteNext();
      if (!IsWritten()) return;
    }
    Finish(*status_);
  }
  void OnCancel() override { OnDisconnect(); }
  void OnDone() override { delete this; }

 private:
  struct Message {
    std::string bytes;
    bool replaceable;
  };

  void Event(std::string bytes) {
    v1::OperationEvent event;
    if (!event.ParseFromString(bytes)) return;
    if (event.has_phase_begun()) daemon_.operations.SetPhase(id_, event.phase_begun().name());
    if (event.has_phase_ended()) PhaseEnded(event.phase_ended());
    Push(std::move(bytes), event.has_phase_bytes());
  }

  void Last(Result<std::string> reply) {
    {
      std::lock_guard lock(write_mutex_);
      if (reply) {
        queue_.push_back({std::move(*reply), false});
        status_ = grpc::Status::OK;
      } else {
        status_ = ToStatus(context_, reply.error());
      }
      WriteNext();
      if (!IsWritten()) return;
    }
    // Call Finish without the lock: this object may be deleted before Finish returns.
    Finish(*status_);
  }

  void Push(std::string bytes, bool replaceable) {
    std::lock_guard lock(write_mutex_);
    if (!queue_.empty() && queue_.back().replaceable && replaceable) queue_.pop_back();
    queue_.push_back({std::move(bytes), replaceable});
    WriteNext();
  }

  void WriteNext() {
    if (write_failed_) queue_.clear();
    if (writing_ || queue_.empty()) return;
    writing_ = true;
    buffer_ = ToBuffer(queue_.front().bytes);
    queue_.pop_front();
    StartWrite(&buffer_);
  }

  // Returns true exactly once, when Finish must be called.
  bool IsWritten() {
    if (!status_ || writing_ || !queue_.empty() || finished_) return false;
    finished_ = true;
    return true;
  }

  std::mutex write_mutex_;
  std::deque<Message> queue_;
  ByteBuffer buffer_;  // the message that is being written
  bool writing_ = false;
  bool write_failed_ = false;
  bool finished_ = false;
  std::optional<grpc::Status> status_;
};

// Delays the worker if the client is slow. This is harmless, because nothing else waits for a
// worker that reads a log.
class LogRelay final : public grpc::ServerWriteReactor<ByteBuffer>, private Relay {
 public:
  LogRelay(DaemonContext& daemon, const IdentifyCaller& identify, CallbackServerContext& context,
           const ByteBuffer& request)
      : Relay(daemon, identify, context, "ReadLog") {
    auto on_end = [this](const Result<std::string>& reply) {
      AwaitWritten();
      Finish(reply ? grpc::Status::OK : ToStatus(context_, reply.error()));
    };
    Status begun = Begin(
        request, [this](const std::string& bytes) { Write(bytes); }, on_end,
        [](const std::string&) {});
    if (!begun) Finish(ToStatus(context, begun.error()));
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(write_mutex_);
    writing_ = false;
    write_failed_ |= !ok;
    written_.notify_all();
  }
  void OnCancel() override { OnDisconnect(); }
  void OnDone() override { delete this; }

 private:
  bool AwaitWritten() {
    std::unique_lock lock(write_mutex_);
    written_.wait(lock, [this] { return !writing_; });
    return !write_failed_;
  }
  // Only the thread that reads the worker's frames calls this, so there is one write at a time.
  void Write(const std::string& bytes) {
    if (!AwaitWritten()) return;
    {
      std::lock_guard lock(write_mutex_);
      writing_ = true;
      buffer_ = ToBuffer(bytes);
    }
    StartWrite(&buffer_);
  }

  std::mutex write_mutex_;
  std::condition_variable written_;
  ByteBuffer buffer_;  // the message that is being written
  bool writing_ = false;
  bool write_failed_ = false;
};

}  // namespace

grpc::Status ToStatus(CallbackServerContext& context, const Error& error) {
  const v1::Error message = EncodeError(error);
  context.AddTrailingMetadata(kErrorHeader, message.SerializeAsString());
  return grpc::Status(static_cast<grpc::StatusCode>(error.code),
                      Utf8(error.ToString().substr(0, kMaxStatusBytes)));
}

Result<v1::WorkerRequest> WorkOf(const DaemonContext& daemon, const Caller& caller,
                                 const CallbackServerContext& context) {
  v1::WorkerRequest work;
  const bool other = caller.uid != ::geteuid() && ::geteuid() == 0;
  if (other) {
    auto* rights = work.mutable_rights();
    rights->set_uid(caller.uid);
    rights->set_gid(caller.gid);
    for (gid_t group : caller.groups) rights->add_groups(group);
  }
  work.set_caller(caller.uid);
  work.set_log_level(daemon.settings.daemon_log_level);
  *work.mutable_daemon_settings() = SettingsText(daemon.settings, /*trusted=*/true);
  auto header = context.client_metadata().find(kContextHeader);
  if (!caller.local || header == context.client_metadata().end()) return work;
  if (!work.mutable_context()->ParseFromArray(header->second.data(),
                                              static_cast<int>(header->second.size()))) {
    return FailUsage(std::string("the header ") + kContextHeader +
                     " is not a stasis.v1.CallContext");
  }
  return work;
}

grpc::ServerUnaryReactor* RelayUnary(DaemonContext& daemon, const IdentifyCaller& identify,
                                     CallbackServerContext& context, std::string method,
                                     const ByteBuffer& request, ByteBuffer& response) {
  return new UnaryRelay(daemon, identify, context, std::move(method), request, response);
}

grpc::ServerWriteReactor<ByteBuffer>* RelayOperation(DaemonContext& daemon,
                                                     const IdentifyCaller& identify,
                                                     CallbackServerContext& context,
                                                     std::string method,
                                                     const ByteBuffer& request) {
  return new OperationRelay(daemon, identify, context, std::move(method), request);
}

grpc::ServerWriteReactor<ByteBuffer>* RelayLog(DaemonContext& daemon,
                                               const IdentifyCaller& identify,
                                               CallbackServerContext& context,
                                               const ByteBuffer& request) {
  return new LogRelay(daemon, identify, context, request);
}

}  // namespace stasis::api
