// Interprets answers of an S3 server that are not a success: what to retry, and what to tell the
// user.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "objects/s3/http_engine.h"

namespace stasis::objects::s3 {

struct S3Failure {
  enum class Action : uint8_t {
    kGiveUp,
    kRetry,
    kRetrySlowly,         // the server asks for fewer requests
    kRefreshCredentials,  // the credentials have expired: try once more with new ones
  };
  Action action = Action::kGiveUp;
  std::string s3_code;  // "NoSuchKey"; empty if the answer has none
  Error error;
};

// What the request was about, for messages.
struct S3Request {
  std::string object;  // "s3://bucket/key"
  std::string bucket;
  std::string region;
  std::string endpoint;
  std::string key_id;              // of the credentials
  std::string credentials_source;  // "the environment"
  int64_t now = 0;                 // Unix time in seconds
};

// Interprets an answer whose status is not 2xx.
S3Failure Interpret(const HttpAnswer& answer, const S3Request& request);

}  // namespace stasis::objects::s3
