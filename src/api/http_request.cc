#include "api/http_request.h"

#include <fmt/format.h>

namespace stasis::api {
namespace {

constexpr std::string_view kEndsOfHead[] = {"\r\n\r\n", "\n\n"};

struct Answer {
  const char* status;
  const char* body;
};

Answer AnswerTo(HttpRequest request) {
  switch (request) {
    case HttpRequest::kMetrics:
      return {"200 OK", ""};
    case HttpRequest::kUnknownPath:
      return {"404 Not Found", "The metrics are at /metrics.\n"};
    case HttpRequest::kOtherMethod:
      return {"405 Method Not Allowed", "Only GET is served.\n"};
    default:
      return {"400 Bad Request", "The request is malformed.\n"};
  }
}

}  // namespace

HttpRequest ParseHttpRequest(std::string_view received) {
  bool complete = false;
  for (std::string_view end : kEndsOfHead) {
    complete |= received.find(end) != std::string_view::npos;
  }
  if (!complete)
    return received.size() < kMaxRequestBytes ? HttpRequest::kIncomplete : HttpRequest::kMalformed;
  std::string_view line = received.substr(0, received.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t method = line.find(' ');
  const size_t path = line.rfind(' ');
  if (method == std::string_view::npos || path == method ||
      !line.substr(path + 1).starts_with("HTTP/1.")) {
    return HttpRequest::kMalformed;
  }
  if (line.substr(0, method) != "GET") return HttpRequest::kOtherMethod;
  std::string_view target = line.substr(method + 1, path - method - 1);
  target = target.substr(0, target.find('?'));
  return target == "/metrics" ? HttpRequest::kMetrics : HttpRequest::kUnknownPath;
}

std::string HttpResponse(HttpRequest request, const std::string& body) {
  const Answer answer = AnswerTo(request);
  const std::string text = request == HttpRequest::kMetrics ? body : answer.body;
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      answer.status, text.size(), text);
}

}  // namespace stasis::api
