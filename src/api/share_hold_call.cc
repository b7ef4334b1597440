#include "api/share_hold_call.h"

#include <algorithm>
#include <string_view>

#include "api/usage_error.h"

namespace stasis::api {
namespace {

constexpr size_t kMaxTarget = 4096;
constexpr std::string_view kHeldMethods[] = {"Suspend", "Resume", "Dump", "GpuStep"};

}  // namespace

Result<bool> ShareHoldCall::Receive(const v1::HoldShareRequest& request) {
  if (request.has_end() && begun_) {
    End(request.end().ok());
    return true;
  }
  if (!request.has_begin() || begun_) {
    return FailUsage("a call of HoldShare has one begin and then one end");
  }
  STASIS_TRY(Begin(request.begin()));
  return false;
}

Status ShareHoldCall::Begin(const v1::HoldShareRequest::Begin& begin) {
  begun_ = true;
  const bool known = std::find(std::begin(kHeldMethods), std::end(kHeldMethods), begin.method()) !=
                     std::end(kHeldMethods);
  if (!known) return FailUsage("the method of HoldShare is none that works on a program");
  if (begin.target().empty() || begin.target().size() > kMaxTarget) {
    return FailUsage("the target of HoldShare is not valid");
  }
  const std::string program = state_->outside.find(begin);
  if (program.empty()) {
    std::lock_guard lock(state_->mutex);
    if (!state_->ended) state_->outside.answer(false);
    return {};
  }
  const uint64_t token = state_->outside.begin(program, begin.method(), [state = state_] {
    std::lock_guard lock(state->mutex);
    if (!state->ended) state->outside.answer(true);
  });
  bool ended = false;
  {
    std::lock_guard lock(state_->mutex);
    state_->token = token;
    ended = state_->ended;
  }
  // The call was ended meanwhile, when the token was not known.
  if (ended) state_->outside.end(token, false);
  return {};
}

void ShareHoldCall::End(bool ok) {
  uint64_t token = 0;
  {
    std::lock_guard lock(state_->mutex);
    if (state_->ended) return;
    state_->ended = true;
    token = state_->token;
  }
  if (token != 0) state_->outside.end(token, ok);
}

}  // namespace stasis::api
