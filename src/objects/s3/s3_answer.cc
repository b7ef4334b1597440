#include "objects/s3/s3_answer.h"

#include <charconv>

#include "objects/object_key.h"
#include "objects/printable.h"
#include "objects/s3/credentials.h"
#include "objects/s3/xml.h"

namespace stasis::objects::s3 {
namespace {

// Returns the value of two hexadecimal digits.
std::optional<char> ParseHexByte(std::string_view digits) {
  unsigned value = 0;
  const char* end = digits.data() + digits.size();
  if (digits.size() != 2 || std::from_chars(digits.data(), end, value, 16).ptr != end) {
    return std::nullopt;
  }
  return static_cast<char>(value);
}

std::string PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = text[i] == '%' ? ParseHexByte(text.substr(i + 1, 2)) : std::nullopt;
    if (byte) i += 2;
    decoded += byte.value_or(text[i] == '+' ? ' ' : text[i]);
  }
  return decoded;
}

}  // namespace

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

std::optional<uint64_t> ParseContentRange(std::string_view text, uint64_t begin, uint64_t end) {
  // "bytes 0-99/1234"
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const size_t dash = text.find('-');
  const size_t slash = text.find('/');
  if (dash == text.npos || slash == text.npos || slash < dash) return std::nullopt;
  const auto first = ParseNumber(text.substr(0, dash));
  const auto last = ParseNumber(text.substr(dash + 1, slash - dash - 1));
  if (!first || !last || *first != begin || *last < begin || *last >= end) return std::nullopt;
  return *last - begin + 1;
}

Result<ListPage> ParseList(std::string_view document, const std::string& prefix,
                           std::string* last_key) {
  STASIS_ASSIGN(const XmlElement root, ParseXml(document));
  if (root.name != "ListBucketResult") {
    return Fail(Code::kInvalidArgument,
                "the server answers a " + Printable(root.name, 80) + " to a request for a list");
  }
  const bool encoded = root.TextOf("EncodingType") == "url";
  ListPage page;
  page.more = root.TextOf("IsTruncated") == "true";
  for (const XmlElement& element : root.children) {
    if (element.name != "Contents") continue;
    std::string key = element.TextOf("Key");
    if (encoded) key = PercentDecode(key);
    const auto size = ParseNumber(element.TextOf("Size"));
    if (!size || key <= *last_key || !key.starts_with(prefix)) {
      return Fail(Code::kInvalidArgument, "the server's list of objects is not in order");
    }
    *last_key = key;
    key.erase(0, prefix.size());
    // Skip keys of other programs, which may use the same bucket.
    if (CheckKey(key)) {
      page.objects.push_back({std::move(key), *size, ParseTime(element.TextOf("LastModified"))});
    }
  }
  return page;
}

}  // namespace stasis::objects::s3
