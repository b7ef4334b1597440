// The conformance tests against Ceph's S3 server, which is not ours.
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "objects/s3/s3_store.h"
#include "objects/s3/sigv4.h"
#include "objects/testing/conformance.h"
#include "objects/testing/server_process.h"

namespace stasis::objects::testing {
namespace {

struct Radosgw {
  std::string folder = "/tmp/objects-radosgw-XXXXXX";
  std::shared_ptr<ServerProcess> server;

  Radosgw() {
    if (::mkdtemp(folder.data()) == nullptr) return;
    server = ServerProcess::Start({STASIS_TESTS_DIR "/objects/radosgw.sh", folder});
    if (server && !MakeBucket()) server.reset();
  }
  ~Radosgw() {
    server.reset();
    (void)RemoveTree(folder);
  }
  bool MakeBucket() const {
    auto engine = s3::HttpEngine::Start({});
    if (!engine) return false;
    const s3::RequestToSign request{
        "PUT", "127.0.0.1:" + std::to_string(server->port()), "/bucket", {}, {}, s3::Sha256Hex({})};
    const auto signed_request =
        s3::Sign({"AKIDTEST", "secret", ""}, "default", request, NowMs() / 1000);
    s3::HttpRequest http;
    http.method = "PUT";
    http.url = server->Url() + signed_request.target;
    http.headers = signed_request.headers;
    const auto answer = (*engine)->Do(http);
    EXPECT_TRUE(answer && answer->status == 200) << (answer ? answer->body : "no answer");
    return answer && answer->status == 200;
  }
};

const std::shared_ptr<Radosgw>& SharedRadosgw() {
  static const auto radosgw = std::make_shared<Radosgw>();
  return radosgw;
}

s3::S3Options RadosgwOptions() {
  s3::S3Options options;
  options.endpoint = SharedRadosgw()->server->Url();
  options.region = "default";
  options.credentials.environment = {{"AWS_ACCESS_KEY_ID", "AKIDTEST"},
                                     {"AWS_SECRET_ACCESS_KEY", "secret"}};
  return options;
}

StoreUnderTest OpenRadosgw() {
  static int count = 0;
  if (!SharedRadosgw()->server) return {};
  auto store = s3::S3Store::Open("bucket", "radosgw-" + std::to_string(++count), RadosgwOptions());
  if (!store) return {};
  return {SharedRadosgw(), std::move(*store)};
}

INSTANTIATE_TEST_SUITE_P(Radosgw, ObjectStoreTest,
                         ::testing::Values(StoreKind{"radosgw", OpenRadosgw}),
                         [](const auto& info) { return info.param.name; });

TEST(RadosgwTest, RefusesAWrongSecret) {
  ASSERT_TRUE(SharedRadosgw()->server);
  s3::S3Options options = RadosgwOptions();
  options.credentials.environment["AWS_SECRET_ACCESS_KEY"] = "wrong";
  auto store = s3::S3Store::Open("bucket", "", options);
  ASSERT_TRUE(store);
  const Status put = PutText(**store, "key", "data");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kPermissionDenied);
  EXPECT_THAT(put.error().ToString(),
              ::testing::HasSubstr("refuses the signature of key AKIDTEST"));
}

TEST(RadosgwTest, ReportsAMissingBucket) {
  ASSERT_TRUE(SharedRadosgw()->server);
  auto store = s3::S3Store::Open("no-such-bucket", "", RadosgwOptions());
  ASSERT_TRUE(store);
  const Status put = PutText(**store, "key", "data");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kNotFound);
  EXPECT_THAT(put.error().ToString(), ::testing::HasSubstr("there is no bucket no-such-bucket"));
  EXPECT_FALSE((*store)->Delete("key"));
}

}  // namespace
}  // namespace stasis::objects::testing
