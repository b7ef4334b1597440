#include "objects/object_key.h"

#include <algorithm>
#include <string>

#include "objects/printable.h"

namespace stasis::objects {
namespace {

constexpr size_t kMaxComponentBytes = 255;  // NAME_MAX

bool IsKeyByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-' || c == '/';
}

// Returns what is wrong with `key`, or nullptr. `is_prefix`: its last component may be incomplete.
const char* Fault(std::string_view key, bool is_prefix) {
  if (key.size() > kMaxKeyBytes) return "is longer than 512 bytes";
  if (!std::all_of(key.begin(), key.end(), IsKeyByte)) {
    return "has a character other than A-Z a-z 0-9 . _ - /";
  }
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view component = key.substr(begin, end - begin);
    const bool incomplete = is_prefix && end == key.size();
    if (component.empty() && !incomplete) return "has an empty component";
    if (!incomplete && (component == "." || component == "..")) {
      return "has a component \".\" or \"..\"";
    }
    if (component.size() > kMaxComponentBytes) return "has a component longer than 255 bytes";
    begin = end + 1;
  }
  return nullptr;
}

Status Check(std::string_view what, std::string_view key, bool is_prefix) {
  const char* fault = Fault(key, is_prefix);
  if (fault == nullptr) return {};
  return Fail(Code::kInvalidArgument,
              std::string(what) + " \"" + Printable(key, 80) + "\" " + fault);
}

}  // namespace

Status CheckKey(std::string_view key) { return Check("object key", key, false); }

Status CheckListing(std::string_view prefix, std::string_view start_after, uint32_t limit) {
  STASIS_TRY(Check("key prefix", prefix, true));
  if (!start_after.empty()) STASIS_TRY(Check("start key", start_after, false));
  if (limit < 1 || limit > kMaxListLimit) {
    return Fail(Code::kInvalidArgument,
                "a list of objects has a limit of 1 to 1000, not " + std::to_string(limit));
  }
  return {};
}

}  // namespace stasis::objects
