// Fuzzes the parsers of locations and keys. An accepted location is the same after it is printed
// and parsed again. Every beginning of a valid key is accepted as a prefix by List().
#include "objects/location.h"

#include "base/fuzz_input.h"
#include "objects/object_key.h"

namespace stasis::objects {
namespace {

void ReadLocation(const std::string& text) {
  const auto location = ParseLocation(text);
  if (!location) {
    FuzzCheck(location.error().code == Code::kInvalidArgument && !location.error().hint.empty());
    return;
  }
  if (location->kind == Location::Kind::kFolder) {
    FuzzCheck(location->folder.starts_with('/') && location->folder.find('\0') == text.npos);
  } else {
    FuzzCheck(!location->bucket.empty() && location->bucket.find('/') == text.npos);
    FuzzCheck(location->prefix.empty() || CheckKey(location->prefix).has_value());
  }
  const auto again = ParseLocation(location->ToString());
  FuzzCheck(again && again->kind == location->kind && again->folder == location->folder &&
            again->bucket == location->bucket && again->prefix == location->prefix);
}

void ReadKey(std::string_view key) {
  if (!CheckKey(key)) return;
  FuzzCheck(key.size() <= kMaxKeyBytes && !key.starts_with('/') && !key.ends_with('/'));
  for (size_t size = 0; size <= key.size(); ++size) {
    FuzzCheck(CheckListing(key.substr(0, size), key, 1).has_value());
  }
}

}  // namespace
}  // namespace stasis::objects

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::objects;  // NOLINT(google-build-using-namespace)
  const std::string text(reinterpret_cast<const char*>(data), size);
  ReadLocation(text);
  ReadLocation("s3://" + text);
  ReadKey(text);
  return 0;
}
