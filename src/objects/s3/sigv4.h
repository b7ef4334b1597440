// Signs requests by AWS Signature Version 4, as S3 and its many implementations define it.
// docs/decisions/own-s3-signature.md says why libcurl's signature is not used.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stasis::objects::s3 {

struct SigningKey {
  std::string key_id;
  std::string secret;
  std::string token;  // of temporary credentials, else empty
};

struct RequestToSign {
  std::string method;  // "GET"
  std::string host;    // the Host header: with the port if it is not the scheme's own
  std::string path;    // not encoded, beginning with a slash
  std::vector<std::pair<std::string, std::string>> query;  // not encoded, in any order
  // Further headers, all of which are signed; names in lower case.
  std::map<std::string, std::string> headers;
  // The SHA-256 of the body in hexadecimal, or kUnsignedPayload.
  std::string payload_sha256;
};

inline constexpr char kUnsignedPayload[] = "UNSIGNED-PAYLOAD";

struct SignedRequest {
  std::string target;                // encoded path and query, for the URL
  std::vector<std::string> headers;  // "name: value", with Authorization, without Host
};

// `unix_seconds` is the time of the signature; servers accept a difference of 15 minutes.
SignedRequest Sign(const SigningKey& key, const std::string& region, const RequestToSign& request,
                   int64_t unix_seconds);

// Returns the SHA-256 of the concatenation of `parts` in lower-case hexadecimal.
std::string Sha256Hex(std::span<const std::string_view> parts);

// Percent-encodes all but unreserved characters (RFC 3986), and slashes unless `keep_slash`.
std::string PercentEncode(std::string_view text, bool keep_slash);

}  // namespace stasis::objects::s3
