// As much of HTTP as a scraper needs.
#pragma once

#include <string>
#include <string_view>

namespace stasis::metrics {

inline constexpr size_t kMaxRequestBytes = 8 << 10;

enum class Asked { kMore, kMetrics, kElsewhere, kOtherMethod, kNonsense };

// What `received` asks for, all that came of it so far; kMore: its head is not whole yet.
Asked WhatIsAsked(std::string_view received);

// A whole answer, after which the connection ends. `body` is sent with kMetrics alone.
std::string AnswerTo(Asked asked, const std::string& body);

}  // namespace stasis::metrics
