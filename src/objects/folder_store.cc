#include "objects/folder_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/file.h"
#include "base/id128.h"
#include "objects/mounts.h"
#include "objects/object_key.h"

namespace stasis::objects {
namespace {

constexpr char kIncoming[] = "~incoming";
constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kReadBytes = 256 << 10;  // fits into the processor's cache, for the sink
constexpr size_t kMaxMountInfoBytes = 16 << 20;

Status CheckLimits(const CallOptions& call) {
  if (call.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
  if (call.deadline.passed()) return Fail(Code::kDeadlineExceeded, "the deadline has passed");
  return {};
}

// Opens a path below `folder` without following symbolic links. O_NONBLOCK: opening a FIFO must not
// block.
Result<UniqueFd> OpenBeneath(int folder, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC | O_NONBLOCK);
  if ((flags & O_CREAT) != 0) how.mode = 0600;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  long fd = -1;
  do {
    fd = ::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how);
    // EAGAIN: a rename elsewhere raced with the walk.
  } while (fd < 0 && (errno == EINTR || errno == EAGAIN));
  if (fd < 0) return FailErrno(errno, "open " + path);
  return UniqueFd(static_cast<int>(fd));
}

Result<UniqueFd> OpenFolderBeneath(int folder, const std::string& path) {
  return OpenBeneath(folder, path.empty() ? "." : path, O_RDONLY | O_DIRECTORY);
}

Status Sync(int fd, const std::string& what, Durability durability) {
  if (durability == Durability::kDurable && ::fsync(fd) != 0)
    return FailErrno(errno, "sync " + what);
  return {};
}

// Splits a key into its folder, without a slash at its end, and its last component.
std::pair<std::string, std::string> Split(const std::string& key) {
  const size_t slash = key.rfind('/');
  if (slash == key.npos) return {"", key};
  return {key.substr(0, slash), key.substr(slash + 1)};
}

// Creates a folder below `parent` and syncs its entry.
Status MakeFolder(int parent, const std::string& name, Durability durability) {
  if (::mkdirat(parent, name.c_str(), 0700) == 0) {
    return Sync(parent, "the parent of " + name, durability);
  }
  if (errno == EEXIST) return {};
  return FailErrno(errno, "create folder " + name);
}

// Opens the folder of a key and creates it and its parents.
Result<UniqueFd> MakeFolders(int root, const std::string& path, Durability durability) {
  auto existing = OpenFolderBeneath(root, path);
  if (existing || existing.error().raw != ENOENT) return existing;
  const auto [parent_path, name] = Split(path);
  STASIS_ASSIGN(const UniqueFd parent, MakeFolders(root, parent_path, durability));
  STASIS_TRY(MakeFolder(parent.get(), name, durability));
  return OpenFolderBeneath(parent.get(), name);
}

Status WriteParts(int fd, std::span<const std::string_view> parts, const CallOptions& call) {
  for (std::string_view part : parts) {
    while (!part.empty()) {
      STASIS_TRY(CheckLimits(call));
      const std::string_view piece = part.substr(0, kPieceBytes);
      STASIS_TRY(WriteAll(fd, piece));
      part.remove_prefix(piece.size());
    }
  }
  return {};
}

Result<std::string> NewName() {
  STASIS_ASSIGN(const Id128 id, Id128::Random());
  return id.Hex();
}

struct ObjectFile {
  UniqueFd fd;
  uint64_t bytes = 0;
};

Result<ObjectFile> OpenObject(int root, const std::string& path, const std::string& key) {
  auto fd = OpenBeneath(root, key, O_RDONLY);
  if (!fd && (fd.error().raw == ENOENT || fd.error().raw == ENOTDIR)) {
    return Fail(Code::kNotFound, "there is no object " + path + "/" + key);
  }
  struct stat st;
  if (!fd && fd.error().raw != ELOOP && fd.error().raw != ENXIO) return Fail(std::move(fd).error());
  if (!fd || ::fstat(fd->get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    if (fd && S_ISDIR(st.st_mode)) {
      return Fail(Code::kNotFound, "there is no object " + path + "/" + key);
    }
    return Fail(Code::kDataLoss, path + "/" + key + " is not a regular file");
  }
  return ObjectFile{std::move(*fd), static_cast<uint64_t>(st.st_size)};
}

struct Entry {
  std::string name;  // a folder's ends in a slash, so that entries sort in the order of keys
  uint64_t bytes = 0;
  int64_t modified_unix_s = 0;
};

// Returns the entries of a folder, sorted.
Result<std::vector<Entry>> ReadFolder(const UniqueFd& folder) {
  UniqueFd own(::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own) return FailErrno(errno, "open folder");
  DIR* stream = ::fdopendir(own.get());
  if (stream == nullptr) return FailErrno(errno, "list folder");
  own.release();
  std::vector<Entry> entries;
  errno = 0;
  while (const dirent* item = ::readdir(stream)) {
    struct stat st;
    const std::string name = item->d_name;
    if (name == "." || name == "..") continue;
    if (::fstatat(folder.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT) break;  // a gc must not believe that an object does not exist
    } else if (S_ISDIR(st.st_mode)) {
      entries.push_back({name + '/'});
    } else {
      // List other types of files too, because reading them reports the problem.
      entries.push_back({name, static_cast<uint64_t>(st.st_size), st.st_mtim.tv_sec});
    }
    errno = 0;
  }
  const int failed = errno;
  ::closedir(stream);
  if (failed != 0) return FailErrno(failed, "list folder");
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

// Walks the folders in the order of keys, and skips those that contain no key of the page.
struct Lister {
  const std::string& prefix;
  const std::string& start_after;
  const uint32_t limit;
  const CallOptions& call;
  ListPage page;

  // `path` is empty or ends in a slash.
  Status Walk(const UniqueFd& folder, const std::string& path);
  bool MayHaveKeys(const std::string& path) const;
  void Add(std::string key, const Entry& entry);
};

bool Lister::MayHaveKeys(const std::string& path) const {
  if (!path.starts_with(prefix) && !prefix.starts_with(path)) return false;
  return start_after < path || start_after.starts_with(path);
}

void Lister::Add(std::string key, const Entry& entry) {
  if (!key.starts_with(prefix) || key <= start_after) return;
  // Skip files of other programs, and the files (.nfs…) that an NFS client keeps for open
  // descriptors.
  if (!CheckKey(key) || Split(key).second.starts_with(".nfs")) return;
  page.more = page.objects.size() == limit;
  if (!page.more) {
    page.objects.push_back({std::move(key), entry.bytes, entry.modified_unix_s});
  }
}

Status Lister::Walk(const UniqueFd& folder, const std::string& path) {
  STASIS_TRY(CheckLimits(call));
  STASIS_ASSIGN(const auto entries, ReadFolder(folder));
  for (const Entry& entry : entries) {
    if (page.more) return {};
    const std::string full = path + entry.name;
    if (!full.ends_with('/')) {
      Add(full, entry);
      continue;
    }
    if (full == std::string(kIncoming) + '/' || !MayHaveKeys(full)) continue;
    auto inner = OpenFolderBeneath(folder.get(), entry.name);
    if (!inner && inner.error().raw == ENOENT) continue;
    if (!inner) return Fail(std::move(inner).error());
    STASIS_TRY(Walk(*inner, full));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<FolderStore>> FolderStore::Open(const std::string& path,
                                                       Durability durability) {
  auto folder = stasis::Open(path, O_RDONLY | O_DIRECTORY);
  if (!folder) {
    Error error = std::move(folder).error();
    if (error.code == Code::kNotFound) error.hint = "create the folder, or mount its file system";
    return Fail(std::move(error));
  }
  return std::unique_ptr<FolderStore>(new FolderStore(path, std::move(*folder), durability));
}

Status FolderStore::Begin(const CallOptions& call) {
  STASIS_TRY(CheckLimits(call));
  const std::lock_guard lock(mutex_);
  ++counters_.requests;
  return {};
}

void FolderStore::Count(uint64_t sent, uint64_t received) {
  const std::lock_guard lock(mutex_);
  counters_.bytes_sent += sent;
  counters_.bytes_received += received;
}

Counters FolderStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

Result<UniqueFd> FolderStore::OpenIncoming() const {
  STASIS_TRY(MakeFolder(folder_.get(), kIncoming, durability_));
  return OpenFolderBeneath(folder_.get(), kIncoming);
}

Status FolderStore::Put(const std::string& key, std::span<const std::string_view> parts,
                        const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  STASIS_TRY(Begin(call));
  const std::string object = path_ + "/" + key;
  auto write = [&]() -> Status {
    STASIS_ASSIGN(const UniqueFd incoming, OpenIncoming());
    STASIS_ASSIGN(const std::string name, NewName());
    STASIS_ASSIGN(const UniqueFd file,
                  OpenBeneath(incoming.get(), name, O_WRONLY | O_CREAT | O_EXCL));
    auto publish = [&]() -> Status {
      STASIS_TRY(WriteParts(file.get(), parts, call));
      STASIS_TRY(Sync(file.get(), object, durability_));
      const auto [folder_path, last] = Split(key);
      STASIS_ASSIGN(const UniqueFd folder, MakeFolders(folder_.get(), folder_path, durability_));
      if (::renameat(incoming.get(), name.c_str(), folder.get(), last.c_str()) != 0) {
        return FailErrno(errno, "rename to " + object);
      }
      return Sync(folder.get(), "the folder of " + object, durability_);
    };
    Status published = publish();
    // If the rename has succeeded, the temporary name no longer exists.
    if (!published) ::unlinkat(incoming.get(), name.c_str(), 0);
    return published;
  };
  Status written = Annotate(write(), "write " + object);
  if (!written && (written.error().raw == ENOTDIR || written.error().raw == EISDIR)) {
    return Fail(Code::kFailedPrecondition,
                object + " cannot be written, because a key is a folder of another key");
  }
  STASIS_TRY(std::move(written));
  uint64_t bytes = 0;
  for (std::string_view part : parts) bytes += part.size();
  Count(bytes, 0);
  return {};
}

Status FolderStore::Get(const std::string& key, uint64_t offset, uint64_t bytes, Sink& sink,
                        const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  STASIS_TRY(Begin(call));
  STASIS_ASSIGN(const ObjectFile file, OpenObject(folder_.get(), path_, key));
  if (bytes > file.bytes || offset > file.bytes - bytes) {
    return Fail(Code::kOutOfRange, path_ + "/" + key + " is shorter than the requested range");
  }
  const auto buffer = std::make_unique_for_overwrite<char[]>(kReadBytes);
  for (uint64_t done = 0; done < bytes;) {
    STASIS_TRY(CheckLimits(call));
    const uint64_t piece = std::min<uint64_t>(kReadBytes, bytes - done);
    STASIS_TRY(Annotate(PreadAll(file.fd.get(), buffer.get(), piece, offset + done),
                        "read " + path_ + "/" + key));
    STASIS_TRY(sink.Write({buffer.get(), piece}));
    done += piece;
  }
  Count(0, bytes);
  return {};
}

Result<std::string> FolderStore::GetWhole(const std::string& key, uint64_t max_bytes,
                                          const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  STASIS_TRY(Begin(call));
  STASIS_ASSIGN(const ObjectFile file, OpenObject(folder_.get(), path_, key));
  if (file.bytes > max_bytes) {
    return Fail(Code::kOutOfRange,
                path_ + "/" + key + " has more than " + std::to_string(max_bytes) + " bytes");
  }
  std::string data(file.bytes, '\0');
  STASIS_TRY(
      Annotate(PreadAll(file.fd.get(), data.data(), data.size(), 0), "read " + path_ + "/" + key));
  Count(0, data.size());
  return data;
}

Result<ListPage> FolderStore::List(const std::string& prefix, const std::string& start_after,
                                   uint32_t limit, const CallOptions& call) {
  STASIS_TRY(CheckListing(prefix, start_after, limit));
  STASIS_TRY(Begin(call));
  Lister lister{prefix, start_after, limit, call, {}};
  STASIS_ASSIGN(const UniqueFd folder, OpenFolderBeneath(folder_.get(), ""));
  STASIS_TRY(Annotate(lister.Walk(folder, ""), "list " + path_ + "/" + prefix));
  return std::move(lister.page);
}

Status FolderStore::Delete(const std::string& key, const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  STASIS_TRY(Begin(call));
  const auto [folder_path, name] = Split(key);
  auto folder = OpenFolderBeneath(folder_.get(), folder_path);
  if (!folder && (folder.error().raw == ENOENT || folder.error().raw == ENOTDIR)) return {};
  if (!folder) return Fail(std::move(folder).error());
  const std::string object = path_ + "/" + key;
  if (::unlinkat(folder->get(), name.c_str(), 0) != 0) {
    if (errno == ENOENT || errno == EISDIR) return {};
    return FailErrno(errno, "delete " + object);
  }
  return Sync(folder->get(), "the folder of " + object, durability_);
}

Status FolderStore::CheckLists() const {
  struct stat st;
  if (::fstat(folder_.get(), &st) != 0) return FailErrno(errno, "stat " + path_);
  STASIS_ASSIGN(const std::string mounts, ReadFile("/proc/self/mountinfo", kMaxMountInfoBytes));
  const auto mount = FindMount(mounts, st.st_dev);
  return mount ? CheckMount(*mount, path_) : Status();
}

Result<uint64_t> FolderStore::RemoveLeftovers(std::chrono::seconds older_than,
                                              const CallOptions& call) {
  STASIS_TRY(Begin(call));
  STASIS_ASSIGN(const UniqueFd incoming, OpenIncoming());
  // Create a file to read the current time of the file system's clock.
  STASIS_ASSIGN(const std::string probe, NewName());
  struct stat now;
  {
    STASIS_ASSIGN(const UniqueFd file,
                  OpenBeneath(incoming.get(), probe, O_WRONLY | O_CREAT | O_EXCL));
    const int failed = ::fstat(file.get(), &now);
    ::unlinkat(incoming.get(), probe.c_str(), 0);
    if (failed != 0) return FailErrno(errno, "stat " + probe);
  }
  STASIS_ASSIGN(const auto entries, ReadFolder(incoming));
  uint64_t removed = 0;
  for (const Entry& entry : entries) {
    struct stat st;
    if (::fstatat(incoming.get(), entry.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (now.st_mtime - st.st_mtime < older_than.count()) continue;
    if (::unlinkat(incoming.get(), entry.name.c_str(), 0) == 0) ++removed;
  }
  return removed;
}

}  // namespace stasis::objects
