#include "objects/mounts.h"

#include <fmt/format.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <vector>

namespace stasis::objects {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Parses "36 35 0:44 /export /mnt rw shared:1 - nfs4 server:/export rw,hard"
// (proc_pid_mountinfo(5)).
std::optional<Mount> ParseLine(std::string_view line, std::string_view device) {
  const auto fields = Split(line, ' ');
  if (fields.size() < 3 || fields[2] != device) return std::nullopt;
  const auto dash = std::find(fields.begin(), fields.end(), "-");
  if (fields.end() - dash < 4) return std::nullopt;
  return Mount{std::string(dash[1]), std::string(dash[3])};
}

}  // namespace

std::optional<Mount> FindMount(std::string_view mountinfo, dev_t device) {
  const std::string wanted = fmt::format("{}:{}", major(device), minor(device));
  std::optional<Mount> found;
  for (const std::string_view line : Split(mountinfo, '\n')) {
    if (auto mount = ParseLine(line, wanted)) found = std::move(mount);
  }
  return found;
}

// The kernel shows actimeo=0 as four options. lookupcache=none is not enough, because a list of a
// folder is read again only when the folder's attributes have expired.
Status CheckMount(const Mount& mount, const std::string& path) {
  if (mount.type != "nfs" && mount.type != "nfs4") return {};
  const auto options = Split(mount.options, ',');
  const auto has = [&](std::string_view option) {
    return std::find(options.begin(), options.end(), option) != options.end();
  };
  if (has("noac") || has("actimeo=0") || (has("acregmax=0") && has("acdirmax=0"))) return {};
  return Fail(Code::kFailedPrecondition,
              fmt::format("{} is on NFS and mounted without actimeo=0, so this host sees changes "
                          "by other hosts too late",
                          path),
              "mount it with the option actimeo=0 or noac");
}

}  // namespace stasis::objects
