#include "dataplane/arena_file.h"

#include <fmt/format.h>

#include <charconv>

#include "base/file.h"

namespace stasis::dataplane {
namespace {

std::string StemOf(const ArenaKey& key) {
  return fmt::format("{}-{}-{}", key.process.pid.value, key.process.start_time, key.gpu.value);
}

}  // namespace

std::string DataPath(const std::string& folder, const ArenaKey& key) {
  return fmt::format("{}/{}{}", folder, StemOf(key), kData);
}

std::string FreePath(const ArenaPlace& place, uid_t owner, uint64_t number) {
  return fmt::format("{}/{}{}-{}{}", place.path, kFree, owner, number, kData);
}

std::string RecordPath(const std::string& data_path) {
  return data_path.substr(0, data_path.size() - kData.size()) + std::string(kRecord);
}

std::optional<ArenaKey> KeyOf(std::string_view name) {
  if (!name.ends_with(kData)) return std::nullopt;
  name.remove_suffix(kData.size());
  ArenaKey key;
  const char* end = name.data() + name.size();
  auto pid = std::from_chars(name.data(), end, key.process.pid.value);
  if (pid.ec != std::errc{} || pid.ptr == end || *pid.ptr != '-') return std::nullopt;
  auto start = std::from_chars(pid.ptr + 1, end, key.process.start_time);
  if (start.ec != std::errc{} || start.ptr == end || *start.ptr != '-') return std::nullopt;
  key.gpu.value.assign(start.ptr + 1, end);
  return key;
}

std::optional<ArenaKey> KeyOfKept(std::string_view name) {
  if (!name.starts_with(kKept)) return std::nullopt;
  return KeyOf(name.substr(kKept.size()));
}

std::string KeptPath(const ArenaPlace& place, const ArenaKey& key) {
  return fmt::format("{}/{}{}{}", place.path, kKept, StemOf(key), kData);
}

std::optional<ArenaKey> KeyOfReady(std::string_view name) {
  if (!name.starts_with(kReady)) return std::nullopt;
  return KeyOf(name.substr(kReady.size()));
}

std::string ReadyPath(const ArenaPlace& place, const ArenaKey& key) {
  return fmt::format("{}/{}{}{}", place.path, kReady, StemOf(key), kData);
}

std::optional<uid_t> OwnerOfFree(std::string_view name) {
  if (!name.starts_with(kFree) || !name.ends_with(kData)) return std::nullopt;
  name.remove_prefix(kFree.size());
  uid_t owner = 0;
  auto parsed = std::from_chars(name.data(), name.data() + name.size(), owner);
  if (parsed.ec != std::errc{} || *parsed.ptr != '-') return std::nullopt;
  return owner;
}

std::vector<std::string> NamesIn(const ArenaPlace& place) {
  auto names = ListDir(place.path);
  return names ? *names : std::vector<std::string>{};
}

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

bool IsLocked(const std::string& path) {
  auto fd = stasis::Open(path, O_RDWR | O_NOFOLLOW);
  struct flock lock = WholeFile();
  return fd && ::fcntl(fd->get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace stasis::dataplane
