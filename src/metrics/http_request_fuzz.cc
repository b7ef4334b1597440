// Whatever a stranger sends: it is answered at the latest when it is as long as may be, and never
// differently when it has come in pieces.
#include "base/fuzz_input.h"
#include "metrics/http_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis;           // NOLINT(google-build-using-namespace)
  using namespace stasis::metrics;  // NOLINT(google-build-using-namespace)
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  Asked asked = Asked::kMore;
  size_t read = 0;
  while (read < size && asked == Asked::kMore) asked = WhatIsAsked(all.substr(0, ++read));
  FuzzCheck(read <= kMaxRequestBytes);
  FuzzCheck(asked != Asked::kMore || size < kMaxRequestBytes);
  if (asked == Asked::kMore) return 0;
  if (asked == Asked::kMetrics) FuzzCheck(all.starts_with("GET /metrics"));
  FuzzCheck(read == kMaxRequestBytes || WhatIsAsked(all.substr(0, kMaxRequestBytes)) == asked);
  const std::string answer = AnswerTo(asked, "body");
  FuzzCheck(answer.starts_with("HTTP/1.1 ") && answer.find("\r\n\r\n") != std::string::npos);
  FuzzCheck(answer.ends_with("body") == (asked == Asked::kMetrics));
  return 0;
}
