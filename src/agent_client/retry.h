// Waits for another client of an agent to leave. An agent has one client at a time, and most of
// them (a survey, a status) ask one question.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/result.h"

namespace stasis::agent_client {

// Calls `connect` until it returns something other than kAborted, for at most `longest`.
template <class Connect>
auto RetryWhileBusy(std::chrono::milliseconds longest, Connect connect) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongestPause{20};
  const auto until = Clock::now() + longest;
  for (std::chrono::milliseconds pause{1};; pause = std::min(pause * 2, kLongestPause)) {
    auto connected = connect();
    if (connected || connected.error().code != Code::kAborted || Clock::now() + pause > until) {
      return connected;
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace stasis::agent_client
