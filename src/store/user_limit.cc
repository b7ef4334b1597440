#include "store/user_limit.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/hidden_folders.h"

namespace stasis::store {

namespace fs = std::filesystem;

uint64_t OurBytes(const std::string& store) {
  uint64_t bytes = 0;
  std::set<FileId> seen;
  std::error_code ignored;
  // Errors are ignored, because images may be deleted during the walk.
  fs::recursive_directory_iterator at(store, fs::directory_options::skip_permission_denied,
                                      ignored);
  for (; at != fs::recursive_directory_iterator(); at.increment(ignored)) {
    // GPU data of a running dump is not part of an image.
    if (at.depth() == 0 && at->path().filename().native().starts_with(kOverflowPrefix)) {
      at.disable_recursion_pending();
      continue;
    }
    struct stat st;
    if (::lstat(at->path().c_str(), &st) != 0 || st.st_uid != ::geteuid()) continue;
    if (S_ISREG(st.st_mode) && seen.insert(FileId::Of(st)).second) {
      bytes += static_cast<uint64_t>(st.st_blocks) * 512;
    }
  }
  return bytes;
}

Status CheckImageLimit(const std::string& store, uint64_t most) {
  if (most == 0) return {};
  const uint64_t taken = OurBytes(store);
  if (taken < most) return {};
  return Fail(
      Code::kResourceExhausted,
      fmt::format("your images in {} take {} MiB; the limit is {} MiB (limits.images)", store,
                  taken >> 20, most >> 20),
      "list your images with `stasis image ls`, and delete some with `stasis image delete`");
}

}  // namespace stasis::store
