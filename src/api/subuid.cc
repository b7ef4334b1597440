#include "api/subuid.h"

#include <pwd.h>
#include <sys/stat.h>

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace stasis::api {
namespace {

constexpr const char kSubordinates[] = "/etc/subuid";
constexpr off_t kMaxBytes = 16 << 20;

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uid_t> UserCalled(const std::string& name) {
  if (auto number = Number(name)) return static_cast<uid_t>(*number);
  std::vector<char> buffer(64 << 10);
  passwd entry{};
  passwd* found = nullptr;
  (void)::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return std::nullopt;
  return entry.pw_uid;
}

}  // namespace

uid_t OwnerOfSubuidIn(const std::string& subordinates, uid_t uid) {
  for (size_t at = 0; at < subordinates.size();) {
    const size_t end = std::min(subordinates.find('\n', at), subordinates.size());
    const std::string_view line(subordinates.data() + at, end - at);
    at = end + 1;
    const size_t first_colon = line.find(':'), last_colon = line.rfind(':');
    if (first_colon == last_colon) continue;
    const auto first = Number(line.substr(first_colon + 1, last_colon - first_colon - 1));
    const auto count = Number(line.substr(last_colon + 1));
    if (!first || !count || uid < *first || uid - *first >= *count) continue;
    if (auto owner = UserCalled(std::string(line.substr(0, first_colon)))) return *owner;
  }
  return uid;
}

uid_t OwnerOfSubuid(uid_t uid) {
  // The file is cached, and read again only if the file was replaced or changed.
  static struct stat known;
  static std::string text;
  struct stat st {};
  if (::stat(kSubordinates, &st) != 0 || st.st_size > kMaxBytes) return uid;
  if (st.st_ino != known.st_ino || st.st_dev != known.st_dev || st.st_size != known.st_size ||
      st.st_mtim.tv_sec != known.st_mtim.tv_sec || st.st_mtim.tv_nsec != known.st_mtim.tv_nsec) {
    text = ReadFile(kSubordinates).value_or("");
    known = st;
  }
  return OwnerOfSubuidIn(text, uid);
}

}  // namespace stasis::api
