#include "objects/s3/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <time.h>

#include <algorithm>
#include <memory>

#include "base/hex.h"

namespace stasis::objects::s3 {
namespace {

std::string Hmac(std::string_view key, std::string_view message) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest, &size);
  return {reinterpret_cast<const char*>(digest), size};
}

std::string Sha256Hex(std::string_view text) { return s3::Sha256Hex({&text, 1}); }

// Returns "20130524T000000Z".
std::string Timestamp(int64_t unix_seconds) {
  const time_t seconds = unix_seconds;
  tm utc;
  ::gmtime_r(&seconds, &utc);
  char text[32];
  ::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &utc);
  return text;
}

std::string CanonicalQuery(std::vector<std::pair<std::string, std::string>> query) {
  for (auto& [name, value] : query) {
    name = PercentEncode(name, false);
    value = PercentEncode(value, false);
  }
  std::sort(query.begin(), query.end());
  std::string text;
  for (const auto& [name, value] : query) {
    if (!text.empty()) text += '&';
    text += name + '=' + value;
  }
  return text;
}

std::string Signature(const SigningKey& key, const std::string& day, const std::string& region,
                      const std::string& text) {
  std::string derived = Hmac("AWS4" + key.secret, day);
  derived = Hmac(derived, region);
  derived = Hmac(derived, "s3");
  derived = Hmac(derived, "aws4_request");
  return HexOfBytes(Hmac(derived, text));
}

}  // namespace

std::string Sha256Hex(std::span<const std::string_view> parts) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (std::string_view part : parts) EVP_DigestUpdate(context.get(), part.data(), part.size());
  EVP_DigestFinal_ex(context.get(), digest, &size);
  return HexOfBytes({reinterpret_cast<const char*>(digest), size});
}

std::string PercentEncode(std::string_view text, bool keep_slash) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  static constexpr std::string_view kUnreserved =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (kUnreserved.find(c) != std::string_view::npos || (keep_slash && c == '/')) {
      encoded += c;
    } else {
      encoded += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return encoded;
}

SignedRequest Sign(const SigningKey& key, const std::string& region, const RequestToSign& request,
                   int64_t unix_seconds) {
  const std::string time = Timestamp(unix_seconds);
  const std::string day = time.substr(0, 8);
  const std::string path = PercentEncode(request.path, true);
  const std::string query = CanonicalQuery(request.query);

  std::map<std::string, std::string> headers = request.headers;
  headers["host"] = request.host;
  headers["x-amz-date"] = time;
  headers["x-amz-content-sha256"] = request.payload_sha256;
  if (!key.token.empty()) headers["x-amz-security-token"] = key.token;

  std::string header_lines;
  std::string names;
  for (const auto& [name, value] : headers) {
    header_lines += name + ':' + value + '\n';
    if (!names.empty()) names += ';';
    names += name;
  }
  const std::string canonical = request.method + '\n' + path + '\n' + query + '\n' + header_lines +
                                '\n' + names + '\n' + request.payload_sha256;
  const std::string scope = day + '/' + region + "/s3/aws4_request";
  const std::string to_sign =
      "AWS4-HMAC-SHA256\n" + time + '\n' + scope + '\n' + Sha256Hex(canonical);

  SignedRequest result;
  result.target = query.empty() ? path : path + '?' + query;
  for (const auto& [name, value] : headers) {
    if (name != "host") result.headers.push_back(name + ": " + value);
  }
  result.headers.push_back("Authorization: AWS4-HMAC-SHA256 Credential=" + key.key_id + '/' +
                           scope + ", SignedHeaders=" + names +
                           ", Signature=" + Signature(key, day, region, to_sign));
  return result;
}

}  // namespace stasis::objects::s3
