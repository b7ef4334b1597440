#include "api/detach_keys.h"

#include "api/usage_error.h"

namespace stasis::api {
namespace {

constexpr size_t kMostKeys = 8;

// Returns the byte that a terminal sends for the key, or -1 for an invalid key.
int ParseKey(std::string_view key) {
  if (key.size() == 1 && key[0] > ' ' && key[0] < 127) return key[0];
  constexpr std::string_view kCtrl = "ctrl-";
  if (!key.starts_with(kCtrl) || key.size() != kCtrl.size() + 1) return -1;
  char c = key.back();
  if (c >= 'a' && c <= 'z') return c - 'a' + 1;
  return c == '@' || (c >= '[' && c <= '_') ? c - '@' : -1;
}

}  // namespace

Result<DetachKeys> DetachKeys::Parse(const std::string& text) {
  DetachKeys keys;
  if (text == "none") return keys;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    int key = ParseKey(std::string_view(text).substr(at, end - at));
    if (key < 0 || keys.keys_.size() == kMostKeys) {
      return FailUsage("--detach-keys '" + text + "' are not valid keys",
                       "examples: ctrl-p,ctrl-q or ctrl-],d; at most 8 keys, or none");
    }
    keys.keys_ += static_cast<char>(key);
    at = end + 1;
  }
  return keys;
}

std::string DetachKeys::Filter(std::string_view typed, bool* detached) {
  std::string through;
  for (char c : typed) {
    if (keys_.empty()) {
      through += c;
      continue;
    }
    // Finds the longest prefix of the keys that is a suffix of the typed bytes.
    std::string held = keys_.substr(0, matched_) + c;
    size_t keep = std::min(held.size(), keys_.size());
    while (keep > 0 && !held.ends_with(keys_.substr(0, keep))) --keep;
    through += held.substr(0, held.size() - keep);
    matched_ = keep;
    if (matched_ == keys_.size()) {
      matched_ = 0;
      *detached = true;
      return through;
    }
  }
  return through;
}

}  // namespace stasis::api
