#include "objects/s3/http_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stasis::objects::s3 {
namespace {

TEST(HttpOptions, TakeOnlyTheirVariable) {
  const char* environment[] = {"HOME=/h", "SSL_CERT_FILE=/a=b", "SSL_CERT_FILES=/c", nullptr};
  EXPECT_EQ(HttpOptionsOf(environment).ssl_cert_file, "/a=b");
  const char* nothing[] = {nullptr};
  EXPECT_EQ(HttpOptionsOf(nothing).ssl_cert_file, "");
}

TEST(HttpEngine, NeedsACaFileForHttpsOnly) {
  HttpOptions options;
  options.ssl_cert_file = "/absent/ca.pem";
  auto engine = HttpEngine::Start(options);
  ASSERT_TRUE(engine) << engine.error().ToString();
  HttpRequest request;
  request.method = "GET";
  request.url = "https://127.0.0.1:1/";
  const auto https = (*engine)->Do(request);
  ASSERT_FALSE(https);
  EXPECT_EQ(https.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(https.error().message, ::testing::HasSubstr("/absent/ca.pem"));
  request.url = "http://127.0.0.1:1/";
  const auto http = (*engine)->Do(request);
  ASSERT_FALSE(http);
  EXPECT_EQ(http.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace stasis::objects::s3
