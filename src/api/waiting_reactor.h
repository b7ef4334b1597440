// A call with one answer that waits for an event. It holds no thread meanwhile: gRPC has few, and
// all calls of all users share them. It counts against its caller's limit.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "api/operation_table.h"

namespace stasis::api {

class WaitingReactor final : public grpc::ServerUnaryReactor {
 public:
  // Ends the call once. Safe to use from any thread, also when the call has ended.
  class Handle {
   public:
    // Calls `answer` if the call has not ended, and ends it with this status.
    void End(const std::function<grpc::Status()>& answer) {
      std::lock_guard lock(mutex_);
      if (WaitingReactor* reactor = std::exchange(reactor_, nullptr)) reactor->Finish(answer());
    }
    bool ended() {
      std::lock_guard lock(mutex_);
      return reactor_ == nullptr;
    }

   private:
    friend class WaitingReactor;
    std::mutex mutex_;
    WaitingReactor* reactor_ = nullptr;
  };

  // `call` is the call's id in the operation table. `cancelled` may be empty.
  WaitingReactor(OperationTable& operations, std::string call, std::function<void()> cancelled)
      : operations_(operations), call_(std::move(call)), cancelled_(std::move(cancelled)) {
    handle_->reactor_ = this;
  }
  std::shared_ptr<Handle> handle() const { return handle_; }

  void OnCancel() override {
    if (cancelled_) cancelled_();
    handle_->End([] { return grpc::Status::CANCELLED; });
  }
  void OnDone() override {
    operations_.End(call_);
    delete this;
  }

 private:
  OperationTable& operations_;
  const std::string call_;
  const std::function<void()> cancelled_;
  const std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
};

}  // namespace stasis::api
