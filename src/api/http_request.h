// Implements the part of HTTP that a scraper needs.
#pragma once

#include <string>
#include <string_view>

namespace stasis::api {

inline constexpr size_t kMaxRequestBytes = 8 << 10;

enum class HttpRequest { kIncomplete, kMetrics, kUnknownPath, kOtherMethod, kMalformed };

// Parses all bytes received so far. Returns kIncomplete if the head is not complete yet.
HttpRequest ParseHttpRequest(std::string_view received);

// Returns the complete answer to the request. The connection is closed after it. Only the answer to
// kMetrics contains `body`.
std::string HttpResponse(HttpRequest request, const std::string& body);

}  // namespace stasis::api
