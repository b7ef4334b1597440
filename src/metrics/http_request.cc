#include "metrics/http_request.h"

#include <fmt/format.h>

namespace stasis::metrics {
namespace {

constexpr std::string_view kEndsOfHead[] = {"\r\n\r\n", "\n\n"};

struct Words {
  const char* status;
  const char* body;
};

Words WordsFor(Asked asked) {
  switch (asked) {
    case Asked::kMetrics:
      return {"200 OK", ""};
    case Asked::kElsewhere:
      return {"404 Not Found", "The figures are at /metrics.\n"};
    case Asked::kOtherMethod:
      return {"405 Method Not Allowed", "Only GET is served.\n"};
    default:
      return {"400 Bad Request", "That is no request that is served here.\n"};
  }
}

}  // namespace

Asked WhatIsAsked(std::string_view received) {
  bool whole = false;
  for (std::string_view end : kEndsOfHead) {
    whole |= received.find(end) != std::string_view::npos;
  }
  if (!whole) return received.size() < kMaxRequestBytes ? Asked::kMore : Asked::kNonsense;
  std::string_view line = received.substr(0, received.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t method = line.find(' ');
  const size_t path = line.rfind(' ');
  if (method == std::string_view::npos || path == method ||
      !line.substr(path + 1).starts_with("HTTP/1.")) {
    return Asked::kNonsense;
  }
  if (line.substr(0, method) != "GET") return Asked::kOtherMethod;
  std::string_view target = line.substr(method + 1, path - method - 1);
  target = target.substr(0, target.find('?'));
  return target == "/metrics" ? Asked::kMetrics : Asked::kElsewhere;
}

std::string AnswerTo(Asked asked, const std::string& body) {
  const Words words = WordsFor(asked);
  const std::string text = asked == Asked::kMetrics ? body : words.body;
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      words.status, text.size(), text);
}

}  // namespace stasis::metrics
