// Checks that any input gets an answer once it reaches the size limit, and that the answer does not
// depend on how the input was split.
#include "api/http_request.h"
#include "base/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis;       // NOLINT(google-build-using-namespace)
  using namespace stasis::api;  // NOLINT(google-build-using-namespace)
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  HttpRequest request = HttpRequest::kIncomplete;
  size_t read = 0;
  while (read < size && request == HttpRequest::kIncomplete)
    request = ParseHttpRequest(all.substr(0, ++read));
  FuzzCheck(read <= kMaxRequestBytes);
  FuzzCheck(request != HttpRequest::kIncomplete || size < kMaxRequestBytes);
  if (request == HttpRequest::kIncomplete) return 0;
  if (request == HttpRequest::kMetrics) FuzzCheck(all.starts_with("GET /metrics"));
  FuzzCheck(read == kMaxRequestBytes ||
            ParseHttpRequest(all.substr(0, kMaxRequestBytes)) == request);
  const std::string answer = HttpResponse(request, "body");
  FuzzCheck(answer.starts_with("HTTP/1.1 ") && answer.find("\r\n\r\n") != std::string::npos);
  FuzzCheck(answer.ends_with("body") == (request == HttpRequest::kMetrics));
  return 0;
}
