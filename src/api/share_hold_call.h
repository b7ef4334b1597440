// One call of HoldShare in the daemon, without gRPC. The daemon stays away from a program for as
// long as the call lasts.
//
// Safe to use from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

class ShareHoldCall {
 public:
  struct Outside {
    // Returns the program that the target names and that the caller may manage, or an empty string.
    std::function<std::string(const v1::HoldShareRequest::Begin& begin)> find;
    // See ShareService::BeginCall. `begun` may be called after `end`.
    std::function<uint64_t(const std::string& program, const std::string& method,
                           std::function<void()> begun)>
        begin;
    std::function<void(uint64_t token, bool ok)> end;
    // Tells the caller whether the program shares GPUs, and the daemon now stays away from it. Not
    // called after End.
    std::function<void(bool shared)> answer;
  };

  explicit ShareHoldCall(Outside outside) : state_(std::make_shared<State>()) {
    state_->outside = std::move(outside);
  }

  // Returns true if the hold has ended with this request, and an error if the request is not valid.
  // Must be called by one thread at a time.
  Result<bool> Receive(const v1::HoldShareRequest& request);
  // Ends the hold, if it has not ended.
  void End(bool ok);

 private:
  // Outlives the object if the program is not free before the call ends.
  struct State {
    std::mutex mutex;
    Outside outside;
    uint64_t token = 0;
    bool ended = false;
  };

  Status Begin(const v1::HoldShareRequest::Begin& begin);

  const std::shared_ptr<State> state_;
  bool begun_ = false;
};

}  // namespace stasis::api
