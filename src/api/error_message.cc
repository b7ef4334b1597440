#include "api/error_message.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "api/utf8.h"

namespace stasis::api {
namespace {

// Limits for one text and for all texts together. A client's gRPC accepts 8 KiB of headers, which
// contain the status text and this message in base64.
constexpr size_t kLongestText = 2048;
constexpr size_t kLongestError = 3328;
constexpr size_t kMostContexts = 16;

// Returns `text`, shortened to at most `left` bytes, and subtracts its length from `left`.
std::string Short(std::string text, size_t& left) {
  constexpr std::string_view kCut = " [...]";
  const size_t longest = std::min(kLongestText, left);
  if (text.size() > longest) {
    text.resize(longest - std::min(longest, kCut.size()));
    if (longest > kCut.size()) text += kCut;
  }
  left -= text.size();
  return Utf8(std::move(text));
}

constexpr Domain kDomains[] = {Domain::kStasis, Domain::kErrno,   Domain::kCuda, Domain::kCriu,
                               Domain::kImage,  Domain::kProcess, Domain::kUsage};

}  // namespace

v1::Error EncodeError(const Error& error) {
  v1::Error message;
  message.set_code(static_cast<uint32_t>(error.code));
  message.set_domain(std::string(DomainName(error.domain)));
  message.set_raw(error.raw);
  size_t left = kLongestError;
  message.set_message(Short(error.message, left));
  message.set_hint(Short(error.hint, left));
  for (size_t i = 0; i < std::min(error.context.size(), kMostContexts) && left > 0; ++i) {
    message.add_context(Short(error.context[i], left));
  }
  message.set_not_undone(error.not_undone);
  return message;
}

Error DecodeError(const v1::Error& message) {
  Error error;
  const bool known = message.code() > 0 && message.code() <= static_cast<uint32_t>(Code::kDataLoss);
  error.code = known ? static_cast<Code>(message.code()) : Code::kUnknown;
  for (Domain domain : kDomains) {
    if (DomainName(domain) == message.domain()) error.domain = domain;
  }
  error.raw = message.raw();
  error.message = message.message();
  error.hint = message.hint();
  error.context.assign(message.context().begin(), message.context().end());
  error.not_undone = message.not_undone();
  return error;
}

}  // namespace stasis::api
