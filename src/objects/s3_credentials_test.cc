// Tests credentials from services on the network, with fake services.
#include <stdlib.h>

#include <fstream>

#include "base/file.h"
#include "objects/s3/credentials.h"
#include "objects/testing/conformance.h"
#include "objects/testing/server_process.h"

namespace stasis::objects::testing {
namespace {

using s3::Credentials;

class ServiceCredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ =
        ServerProcess::Start({"/usr/bin/python3", STASIS_TESTS_DIR "/objects/fake_credentials.py"});
    ASSERT_TRUE(server_);
    auto engine = s3::HttpEngine::Start({});
    ASSERT_TRUE(engine);
    engine_ = std::move(*engine);
    folder_ = ::testing::TempDir() + "objects-tokens-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    options_.metadata_endpoint = options_.container_endpoint = server_->Url();
    options_.environment["AWS_ENDPOINT_URL_STS"] = server_->Url();
  }
  void TearDown() override { (void)RemoveTree(folder_); }
  std::string WriteToken(const std::string& text) {
    const std::string path = folder_ + "/token";
    std::ofstream(path) << text;
    return path;
  }
  Result<Credentials> Get() { return s3::CredentialChain(options_, *engine_).Get({}); }
  void ExpectKey(const std::string& key_id) {
    const auto found = Get();
    ASSERT_TRUE(found) << found.error().ToString();
    EXPECT_EQ(found->key.key_id, key_id);
    EXPECT_EQ(found->key.secret, "secret");
    EXPECT_EQ(found->key.token, "token");
    EXPECT_EQ(found->expires, 4102444800);
  }

  std::shared_ptr<ServerProcess> server_;
  std::unique_ptr<s3::HttpEngine> engine_;
  std::string folder_;
  s3::CredentialOptions options_;
};

TEST_F(ServiceCredentialsTest, ComeFromTheMetadataService) {
  ExpectKey("ec2");
  options_.environment["AWS_EC2_METADATA_DISABLED"] = "true";
  EXPECT_EQ(Get().error().code, Code::kNotFound);
}

TEST_F(ServiceCredentialsTest, MayBeMissingOutsideOfEc2) {
  options_.metadata_endpoint = "http://127.0.0.1:1";
  EXPECT_EQ(Get().error().code, Code::kNotFound);
}

TEST_F(ServiceCredentialsTest, ComeFromAContainer) {
  options_.environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "let me in";
  options_.environment["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/credentials";
  ExpectKey("container");
  options_.environment.erase("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  options_.environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_->Url() + "/container";
  ExpectKey("container");
  // EKS stores its token in a file, and replaces the file from time to time.
  options_.environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "wrong";
  EXPECT_EQ(Get().error().code, Code::kPermissionDenied);
  options_.environment["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = WriteToken("let me in\n");
  ExpectKey("container");
  WriteToken("two\nlines");
  EXPECT_EQ(Get().error().code, Code::kInvalidArgument);
}

TEST_F(ServiceCredentialsTest, AreBounded) {
  options_.environment["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/long";
  EXPECT_EQ(Get().error().code, Code::kOutOfRange);
}

TEST_F(ServiceCredentialsTest, ComeFromAWebIdentity) {
  options_.environment["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  options_.environment["AWS_WEB_IDENTITY_TOKEN_FILE"] = WriteToken("web-token\n");
  ExpectKey("web");
  WriteToken("old-token");
  const auto found = Get();
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().ToString(), ::testing::HasSubstr("ExpiredTokenException: too old"));
}

}  // namespace
}  // namespace stasis::objects::testing
