// Runs the conformance tests with a real S3 server: radosgw of Ceph.
#include "objects/s3/s3_store.h"
#include "objects/testing/conformance.h"
#include "objects/testing/radosgw.h"

namespace stasis::objects::testing {
namespace {

const std::shared_ptr<Radosgw>& SharedRadosgw() {
  static const auto radosgw = std::make_shared<Radosgw>("memory");
  return radosgw;
}

s3::S3Options RadosgwOptions() { return SharedRadosgw()->Options(); }

StoreUnderTest OpenRadosgw() {
  static int count = 0;
  if (!SharedRadosgw()->runs()) return {};
  auto store = s3::S3Store::Open("bucket", "radosgw-" + std::to_string(++count), RadosgwOptions());
  if (!store) return {};
  return {SharedRadosgw(), std::move(*store)};
}

INSTANTIATE_TEST_SUITE_P(Radosgw, ObjectStoreTest,
                         ::testing::Values(StoreKind{"radosgw", OpenRadosgw}),
                         [](const auto& info) { return info.param.name; });

TEST(RadosgwTest, RefusesAWrongSecret) {
  ASSERT_TRUE(SharedRadosgw()->runs());
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
  ASSERT_TRUE(SharedRadosgw()->runs());
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
