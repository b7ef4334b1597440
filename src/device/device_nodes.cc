#include "device/device_nodes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fd.h"
#include "base/file.h"

namespace stasis::device {
namespace {

// Opens a folder below a container's root. A symbolic link of the container cannot lead out of it.
UniqueFd OpenBelow(int root, const std::string& path) {
  open_how how = {};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how)));
}

bool IsDevice(const struct stat& st) { return S_ISCHR(st.st_mode); }

// Creates the device file, or replaces one with another device number.
Status RenewNode(int folder, const std::string& name, dev_t number, bool add) {
  struct stat before;
  const bool exists = ::fstatat(folder, name.c_str(), &before, AT_SYMLINK_NOFOLLOW) == 0;
  if (exists ? !IsDevice(before) || before.st_rdev == number : !add) return {};
  if (!exists) {
    if (::fstat(folder, &before) != 0) return FailErrno(errno, "stat");
    before.st_mode = 0666;
  } else if (::unlinkat(folder, name.c_str(), 0) != 0) {
    return FailErrno(errno, "remove it");
  }
  const mode_t mode = before.st_mode & 0777;
  if (::mknodat(folder, name.c_str(), S_IFCHR | mode, number) != 0)
    return FailErrno(errno, "mknod");
  // mknod(2) applies the umask.
  if (::fchmodat(folder, name.c_str(), mode, 0) != 0) return FailErrno(errno, "chmod");
  if (::fchownat(folder, name.c_str(), before.st_uid, before.st_gid, AT_SYMLINK_NOFOLLOW) != 0) {
    return FailErrno(errno, "chown");
  }
  return {};
}

}  // namespace

Status RenewDeviceNodes(const std::string& root, const std::vector<int>& minors,
                        const std::string& dev) {
  STASIS_ASSIGN(const UniqueFd top, Open(root, O_PATH | O_DIRECTORY));
  for (const char* sub : {"", "/nvidia-caps"}) {
    const std::string ours = dev + sub;
    const UniqueFd folder = OpenBelow(top.get(), std::string("/dev") + sub);
    struct stat here, there;
    if (!folder || ::stat(ours.c_str(), &here) != 0 || ::fstat(folder.get(), &there) != 0 ||
        FileId::Of(here) == FileId::Of(there)) {
      continue;
    }
    for (const std::string& name : ListDir(ours).value_or(std::vector<std::string>())) {
      struct stat node;
      const std::string path = ours + "/" + name;
      if (!name.starts_with("nvidia") || ::stat(path.c_str(), &node) != 0 || !IsDevice(node)) {
        continue;
      }
      const bool add = std::any_of(minors.begin(), minors.end(), [&](int minor) {
        return name == fmt::format("nvidia{}", minor);
      });
      STASIS_TRY(Annotate(RenewNode(folder.get(), name, node.st_rdev, add),
                          fmt::format("the container's device /dev{}/{}", sub, name)));
    }
  }
  return {};
}

}  // namespace stasis::device
