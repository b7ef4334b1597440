#include "dataplane/arena_place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <limits>
#include <sstream>

#include "base/checksum.h"
#include "base/file.h"
#include "base/hidden_folders.h"
#include "base/own_path.h"
#include "process/control_group.h"
#include "process/host_name.h"

namespace stasis::dataplane {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

bool OnTmpfs(const std::string& path) {
  struct statfs st;
  return ::statfs(path.c_str(), &st) == 0 && st.f_type == TMPFS_MAGIC;
}

bool InMemory(const std::string& path) {
  struct statfs st;
  return ::statfs(path.c_str(), &st) == 0 &&
         (st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC || st.f_type == HUGETLBFS_MAGIC);
}

// Creates the directory and checks that only this user can enter it.
Status OpenOwnFolder(const std::string& path) {
  STASIS_TRY(MakeDirs(path, 0700));
  STASIS_ASSIGN(UniqueFd fd, Open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return FailErrno(errno, "stat " + path);
  if (st.st_uid != ::geteuid()) {
    return Fail(Code::kPermissionDenied,
                path + " belongs to user " + std::to_string(st.st_uid) + ", not to you",
                "remove it, or set STASIS_ARENA_DIR (folders.arena) to a folder in a tmpfs");
  }
  if ((st.st_mode & 0777) != 0700 && ::fchmod(fd.get(), 0700) != 0) {
    return FailErrno(errno, "chmod " + path);
  }
  return {};
}

bool IsMountPoint(const std::string& path) {
  struct stat self, parent;
  return ::stat(path.c_str(), &self) == 0 && ::stat((path + "/..").c_str(), &parent) == 0 &&
         self.st_dev != parent.st_dev;
}

// Mounts a tmpfs at `path` if this process is permitted to. Returns true if a tmpfs is mounted
// there afterwards.
bool Mount(const Paths& paths, const std::string& path) {
  auto lock = Open(paths.run + "/arena.lock", O_RDWR | O_CREAT);
  if (!lock || ::flock(lock->get(), LOCK_EX) != 0) return false;
  if (IsMountPoint(path)) return OnTmpfs(path);
  const std::string common = "mode=0700,size=0";  // no limit
  // Old kernels reject these options with EINVAL.
  for (const char* extra : {",huge=always,noswap", ",huge=always", ",noswap", ""}) {
    if (::mount("stasis-arena", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
                (common + extra).c_str()) == 0) {
      return true;
    }
    if (errno != EINVAL) return false;
  }
  return false;
}

Result<UniqueFd> OpenUsers(const Paths& paths) {
  return Open(paths.run + "/arena.users", O_RDWR | O_CREAT);
}

Result<std::vector<std::string>> SpillFolders(const Paths& paths) {
  std::vector<std::string> folders;
  auto text = ReadFile(paths.run + "/arena-spill", 1 << 20);
  if (!text && text.error().code == Code::kNotFound) return folders;
  if (!text) return Fail(std::move(text.error()));
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) folders.push_back(line);
  return folders;
}

Status ChangeSpillFolders(const Paths& paths,
                          const std::function<void(std::vector<std::string>&)>& change) {
  STASIS_ASSIGN(UniqueFd lock, Open(paths.run + "/arena.lock", O_RDWR | O_CREAT));
  if (::flock(lock.get(), LOCK_EX) != 0) return FailErrno(errno, "lock the list of arenas");
  STASIS_ASSIGN(const std::vector<std::string> before, SpillFolders(paths));
  std::vector<std::string> folders = before;
  change(folders);
  if (folders == before) return {};
  std::string text;
  for (const auto& known : folders) text += known + "\n";
  return WriteFileDurably(paths.run + "/arena-spill", text);
}

Status RecordSpillFolder(const Paths& paths, const std::string& folder) {
  return ChangeSpillFolders(paths, [&](std::vector<std::string>& folders) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) {
      folders.push_back(folder);
    }
  });
}

// Returns a name that differs between machines which share a directory: the host name, and a hash
// of the machine's id, because containers and clones may have the same host name. The id itself
// should not be visible to others (machine-id(5)).
std::string Machine() {
  std::string name = process::HostName();
  std::replace(name.begin(), name.end(), '/', '_');
  const std::string id = ReadFile("/etc/machine-id", 4096).value_or("");
  return id.empty() ? name : name + "-" + Checksum("stasis arenas " + id).Hex().substr(0, 8);
}

Result<std::vector<ArenaPlace>> MemoryPlaces(const Paths& paths, const ArenaOptions& options) {
  using Kind = ArenaPlace::Kind;
  std::vector<ArenaPlace> places;
  if (std::string given = options.place.empty() ? paths.arena : options.place; !given.empty()) {
    given = AbsolutePath(given);
    STASIS_TRY(OpenOwnFolder(given));
    if (!OnTmpfs(given)) {
      return Fail(Code::kUnimplemented, given + " is not in a tmpfs, as a place for arenas must be",
                  "use --spill for a folder on disk");
    }
    places.push_back({Kind::kExplicit, given});
    return places;
  }
  const std::string own = paths.run + "/arena";
  STASIS_TRY(OpenOwnFolder(own));
  if (IsMountPoint(own) ? OnTmpfs(own)
                        : options.may_mount && !options.look_only && Mount(paths, own)) {
    places.push_back({Kind::kOwnMount, own});
    return places;
  }
  if (OnTmpfs(own)) places.push_back({Kind::kRun, own});
  const std::string shared = "/dev/shm/stasis-" + std::to_string(::geteuid());
  const bool wanted = !options.look_only || PathExists(shared);
  if (OnTmpfs("/dev/shm") && wanted && OpenOwnFolder(shared))
    places.push_back({Kind::kSharedMemory, shared});
  // The sizes of these file systems are set outside of Stasis, so prefer the one with the most free
  // space.
  std::stable_sort(places.begin(), places.end(), [](const ArenaPlace& a, const ArenaPlace& b) {
    return FreeBytes(a.path).value_or(0) > FreeBytes(b.path).value_or(0);
  });
  return places;
}

Result<uint64_t> FileSystemRoom(const std::string& path) {
  struct statvfs st;
  if (::statvfs(path.c_str(), &st) != 0) return FailErrno(errno, "statvfs " + path);
  // A tmpfs without a size limit reports zero blocks.
  return st.f_blocks == 0 ? kNoLimit : uint64_t{st.f_bavail} * st.f_frsize;
}

}  // namespace

uint64_t MemoryAvailable() {
  auto text = ReadFile("/proc/meminfo", 1 << 16);
  constexpr std::string_view kName = "MemAvailable:";
  const size_t at = text ? text->find(kName) : std::string::npos;
  if (at == std::string::npos) return kNoLimit;
  return std::strtoull(text->c_str() + at + kName.size(), nullptr, 10) * 1024;
}

Result<ArenaPlace> OpenOverflow(const Paths& paths, const std::string& directory) {
  const std::string folder =
      fmt::format("{}/{}{}-{}", AbsolutePath(directory), kOverflowPrefix, ::geteuid(), Machine());
  auto open = [&]() -> Status {
    if (folder.find('\n') != folder.npos) {
      return Fail(Code::kInvalidArgument, "its path contains a line break");
    }
    if (InMemory(ExistingPart(AbsolutePath(directory)))) {
      return Fail(Code::kUnimplemented, "its file system is in memory too",
                  "name a folder on disk with folders.spill");
    }
    STASIS_TRY(OpenOwnFolder(folder));
    return CheckOwnFolder(folder);
  };
  STASIS_TRY(Annotate(open(), "use " + directory + " for GPU data"));
  STASIS_TRY(RecordSpillFolder(paths, folder));
  return ArenaPlace{ArenaPlace::Kind::kDisk, folder};
}

bool IsOverflow(const std::string& folder) {
  return std::string_view(folder).substr(folder.rfind('/') + 1).starts_with(kOverflowPrefix);
}

// The folder is removed without the lock of the list, because a disk may not answer. A command that
// makes it again meanwhile records it afterwards, so its record stays.
void RemoveEmptyOverflow(const Paths& paths, const std::string& folder) {
  if (!IsOverflow(folder) || ::rmdir(folder.c_str()) != 0) return;
  // Without this, only a folder that does not exist stays on the list.
  (void)ChangeSpillFolders(paths, [&](std::vector<std::string>& folders) {
    if (!PathExists(folder)) std::erase(folders, folder);
  });
}

Result<std::vector<ArenaPlace>> OpenPlaces(const Paths& paths, const ArenaOptions& options) {
  std::vector<ArenaPlace> places;
  STASIS_ASSIGN(std::vector<std::string> spill, SpillFolders(paths));
  if (!options.spill_dir.empty()) {
    // Uses a subdirectory, so that the user may name a directory of any mode.
    const std::string folder =
        AbsolutePath(options.spill_dir) + "/stasis-spill-" + std::to_string(::geteuid());
    auto open = [&]() -> Status {
      STASIS_TRY(OpenOwnFolder(folder));
      return CheckOwnFolder(folder);
    };
    STASIS_TRY(Annotate(open(), "use " + options.spill_dir + " for GPU data"));
    STASIS_TRY(RecordSpillFolder(paths, folder));
    places.push_back({ArenaPlace::Kind::kDisk, folder});
    std::erase(spill, folder);
  }
  auto memory = MemoryPlaces(paths, options);
  if (!memory && places.empty()) return Fail(std::move(memory.error()));
  if (memory) places.insert(places.end(), memory->begin(), memory->end());
  if (!options.look_only && places.empty()) {
    return Fail(Code::kUnimplemented, "there is no tmpfs for GPU data",
                "name a folder on disk with --spill, or a folder in a tmpfs with STASIS_ARENA_DIR "
                "(folders.arena)");
  }
  for (const std::string& folder : spill) {
    if (PathExists(folder)) places.push_back({ArenaPlace::Kind::kDisk, folder});
  }
  return places;
}

Result<UniqueFd> HoldPlaces(const Paths& paths) {
  STASIS_ASSIGN(UniqueFd users, OpenUsers(paths));
  // Waits only while UnmountUnused() is running, which takes a short time.
  if (TEMP_FAILURE_RETRY(::flock(users.get(), LOCK_SH)) != 0) {
    return FailErrno(errno, "lock the folder of arenas");
  }
  return users;
}

bool UnmountUnused(const Paths& paths) {
  auto users = OpenUsers(paths);
  if (!users || ::flock(users->get(), LOCK_EX | LOCK_NB) != 0) return false;
  const std::string own = paths.run + "/arena";
  if (!IsMountPoint(own) || !OnTmpfs(own)) return false;
  auto names = ListDir(own);
  return names && names->empty() && ::umount2(own.c_str(), UMOUNT_NOFOLLOW) == 0;
}

Result<uint64_t> RoomIn(const ArenaPlace& place, bool ignore_memory_check,
                        const MemoryRoom& keep_free) {
  STASIS_ASSIGN(const uint64_t file_system, FileSystemRoom(place.path));
  if (!place.in_memory() || ignore_memory_check) return file_system;
  const auto less = [](uint64_t bytes, uint64_t keep) { return bytes - std::min(bytes, keep); };
  const uint64_t groups = process::MemoryLeftInControlGroups({::getpid()}).beyond_reserve();
  return std::min({file_system, less(MemoryAvailable(), keep_free.machine_bytes),
                   less(groups, keep_free.groups_bytes)});
}

Result<MemoryRoom> MemoryRoomIn(const ArenaPlace& place) {
  STASIS_ASSIGN(const uint64_t file_system, FileSystemRoom(place.path));
  return MemoryRoom{std::min(file_system, MemoryAvailable()),
                    process::MemoryLeftInControlGroups({::getpid()}).beyond_reserve()};
}

}  // namespace stasis::dataplane
