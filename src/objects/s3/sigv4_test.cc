#include "objects/s3/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stasis::objects::s3 {
namespace {

using ::testing::HasSubstr;

// The examples of "Authenticating Requests: Using the Authorization Header" in the S3 API
// reference.
constexpr int64_t kTime = 1369353600;  // 2013-05-24T00:00:00Z
constexpr char kEmptySha256[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string SignatureOf(const RequestToSign& request) {
  const SigningKey key{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
  const std::string last = Sign(key, "us-east-1", request, kTime).headers.back();
  return last.substr(last.rfind('=') + 1);
}

RequestToSign ExampleRequest(std::string method, std::string path) {
  return {std::move(method), "examplebucket.s3.amazonaws.com", std::move(path), {}, {},
          kEmptySha256};
}

TEST(SigV4, SignsTheGetWithARange) {
  RequestToSign request = ExampleRequest("GET", "/test.txt");
  request.headers["range"] = "bytes=0-9";
  EXPECT_EQ(SignatureOf(request),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(SigV4, SignsThePutWithASpecialCharacter) {
  RequestToSign request = ExampleRequest("PUT", "/test$file.text");
  request.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  request.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  const std::string_view body = "Welcome to Amazon S3.";
  request.payload_sha256 = Sha256Hex({&body, 1});
  EXPECT_EQ(SignatureOf(request),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(SigV4, SignsAQueryWithoutAValue) {
  RequestToSign request = ExampleRequest("GET", "/");
  request.query = {{"lifecycle", ""}};
  EXPECT_EQ(SignatureOf(request),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(SigV4, SignsAQueryThatIsNotSorted) {
  RequestToSign request = ExampleRequest("GET", "/");
  request.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_EQ(SignatureOf(request),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(SigV4, EncodesTheTarget) {
  RequestToSign request = ExampleRequest("GET", "/a b/c+d");
  request.query = {{"prefix", "x/y"}, {"list-type", "2"}};
  EXPECT_EQ(Sign({"id", "secret", ""}, "r", request, kTime).target,
            "/a%20b/c%2Bd?list-type=2&prefix=x%2Fy");
}

TEST(SigV4, SignsTheTokenOfTemporaryCredentials) {
  const auto signed_request =
      Sign({"id", "secret", "token"}, "r", ExampleRequest("GET", "/"), kTime);
  EXPECT_THAT(signed_request.headers, ::testing::Contains("x-amz-security-token: token"));
  EXPECT_THAT(signed_request.headers.back(), HasSubstr(";x-amz-security-token, "));
}

TEST(SigV4, HashesPartsAsOne) {
  const std::string_view parts[] = {"Welcome ", "", "to Amazon S3."};
  EXPECT_EQ(Sha256Hex(parts), "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
  EXPECT_EQ(Sha256Hex({}), kEmptySha256);
}

}  // namespace
}  // namespace stasis::objects::s3
