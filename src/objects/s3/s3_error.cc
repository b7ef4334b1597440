#include "objects/s3/s3_error.h"

#include <time.h>

#include <cstdlib>

#include "objects/printable.h"
#include "objects/s3/xml.h"

namespace stasis::objects::s3 {
namespace {

using Action = S3Failure::Action;

// Text that is added to the server's own error text.
struct Explanation {
  std::string message;
  std::string hint;
};
using Explain = Explanation (*)(const HttpAnswer&, const XmlElement&, const S3Request&);

Explanation WrongRegion(const HttpAnswer& answer, const XmlElement& error,
                        const S3Request& request) {
  std::string region = answer.Header("x-amz-bucket-region");
  if (region.empty()) region = error.TextOf("Region");
  if (region.empty()) {
    return {"bucket " + request.bucket + " is not in region " + request.region,
            "set the region and the endpoint of the bucket"};
  }
  return {
      "bucket " + request.bucket + " is in region " + Printable(region) + ", not " + request.region,
      "set the region to " + Printable(region)};
}

Explanation WrongClock(const HttpAnswer& answer, const XmlElement&, const S3Request& request) {
  tm utc{};
  const std::string date = answer.Header("date");
  std::string by;
  if (::strptime(date.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &utc) != nullptr) {
    const int64_t ahead = request.now - ::timegm(&utc);
    by = " is " + std::to_string(std::abs(ahead)) + " s " + (ahead < 0 ? "behind" : "ahead of") +
         " the server's";
  } else {
    by = " differs too much from the server's";
  }
  return {"the clock of this machine" + by, "set the clock, for example with chronyd"};
}

Explanation WrongSecret(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {"the server refuses the signature of key " + request.key_id,
          "check the secret access key from " + request.credentials_source +
              "; if it is right, check the region and that no proxy changes requests"};
}

Explanation UnknownKey(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {"the server does not know the access key " + request.key_id,
          "check the access key from " + request.credentials_source + " and the endpoint " +
              request.endpoint};
}

Explanation Expired(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {"the credentials from " + request.credentials_source + " have expired",
          "get new credentials, for example by logging in again"};
}

Explanation Denied(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {"key " + request.key_id + " may not do this",
          "the policy must allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket on "
          "bucket " +
              request.bucket};
}

Explanation NoBucket(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {"there is no bucket " + request.bucket + " at " + request.endpoint,
          "create the bucket, or check its name and the endpoint"};
}

Explanation NoObject(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {"there is no object " + request.object, ""};
}

Explanation OutOfRange(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {request.object + " is shorter than the requested range", ""};
}

Explanation Replaced(const HttpAnswer&, const XmlElement&, const S3Request& request) {
  return {request.object + " was replaced while it was read", "try again"};
}

struct Row {
  const char* s3_code;  // nullptr: any
  long status;          // 0: any
  Action action;
  Code code;
  Explain explain;  // nullptr: the server's own message
};

// The first row that matches applies. Answers to HEAD have no S3 code, only a status.
constexpr Row kRows[] = {
    {"SlowDown", 0, Action::kRetrySlowly, Code::kUnavailable, nullptr},
    {"RequestTimeout", 0, Action::kRetry, Code::kUnavailable, nullptr},
    // The body was damaged in transit.
    {"XAmzContentSHA256Mismatch", 0, Action::kRetry, Code::kDataLoss, nullptr},
    {"BadDigest", 0, Action::kRetry, Code::kDataLoss, nullptr},
    {"IncompleteBody", 0, Action::kRetry, Code::kUnavailable, nullptr},
    {"OperationAborted", 0, Action::kRetry, Code::kAborted, nullptr},
    {"ConcurrentModification", 0, Action::kRetry, Code::kAborted, nullptr},
    {"ExpiredToken", 0, Action::kRefreshCredentials, Code::kPermissionDenied, Expired},
    {"InvalidToken", 0, Action::kRefreshCredentials, Code::kPermissionDenied, Expired},
    {"RequestTimeTooSkewed", 0, Action::kGiveUp, Code::kFailedPrecondition, WrongClock},
    {"SignatureDoesNotMatch", 0, Action::kGiveUp, Code::kPermissionDenied, WrongSecret},
    {"InvalidAccessKeyId", 0, Action::kGiveUp, Code::kPermissionDenied, UnknownKey},
    {"AuthorizationHeaderMalformed", 0, Action::kGiveUp, Code::kFailedPrecondition, WrongRegion},
    {"PermanentRedirect", 0, Action::kGiveUp, Code::kFailedPrecondition, WrongRegion},
    {"TemporaryRedirect", 0, Action::kGiveUp, Code::kFailedPrecondition, WrongRegion},
    {"NoSuchBucket", 0, Action::kGiveUp, Code::kNotFound, NoBucket},
    {"NoSuchKey", 0, Action::kGiveUp, Code::kNotFound, NoObject},
    {nullptr, 301, Action::kGiveUp, Code::kFailedPrecondition, WrongRegion},
    {nullptr, 307, Action::kGiveUp, Code::kFailedPrecondition, WrongRegion},
    {nullptr, 403, Action::kGiveUp, Code::kPermissionDenied, Denied},
    {nullptr, 401, Action::kGiveUp, Code::kPermissionDenied, Denied},
    {nullptr, 404, Action::kGiveUp, Code::kNotFound, NoObject},
    {nullptr, 408, Action::kRetry, Code::kUnavailable, nullptr},
    {nullptr, 412, Action::kGiveUp, Code::kAborted, Replaced},
    {nullptr, 416, Action::kGiveUp, Code::kOutOfRange, OutOfRange},
    {nullptr, 429, Action::kRetrySlowly, Code::kUnavailable, nullptr},
    {nullptr, 500, Action::kRetry, Code::kUnavailable, nullptr},
    {nullptr, 502, Action::kRetry, Code::kUnavailable, nullptr},
    {nullptr, 503, Action::kRetrySlowly, Code::kUnavailable, nullptr},
    {nullptr, 504, Action::kRetry, Code::kUnavailable, nullptr},
    {nullptr, 0, Action::kGiveUp, Code::kUnknown, nullptr},
};

const Row& RowFor(long status, const std::string& s3_code) {
  const Row* row = kRows;
  while ((row->s3_code != nullptr && s3_code != row->s3_code) ||
         (row->status != 0 && row->status != status)) {
    ++row;
  }
  return *row;
}

Explanation ServersOwn(const HttpAnswer& answer, const XmlElement& error,
                       const S3Request& request) {
  std::string text = request.endpoint + " answers " + std::to_string(answer.status);
  for (const char* part : {"Code", "Message"}) {
    if (const std::string own = error.TextOf(part); !own.empty()) text += " " + Printable(own);
  }
  return {text, ""};
}

}  // namespace

S3Failure Interpret(const HttpAnswer& answer, const S3Request& request) {
  XmlElement error;
  if (auto parsed = ParseXml(answer.body); parsed && parsed->name == "Error") error = *parsed;
  const std::string s3_code = error.TextOf("Code");
  const Row& row = RowFor(answer.status, s3_code);
  const Explain explain = row.explain != nullptr ? row.explain : ServersOwn;
  const Explanation text = explain(answer, error, request);

  S3Failure failure{row.action, Printable(s3_code), {}};
  failure.error.code = row.code;
  failure.error.raw = answer.status;
  failure.error.message = text.message;
  failure.error.hint = text.hint;
  return failure;
}

}  // namespace stasis::objects::s3
