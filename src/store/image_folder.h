// The folder of an image: the rules for its name, and the hidden names and locks that are used
// while an image is written, deleted or restored:
//
//   .NAME.partial-HEX        being written (image_writer.h)
//   .NAME.partial-HEX.late   files that CRIU wrote too late to be part of the image
//   .NAME.deleted-HEX        being deleted (store/store_folder.h)
//   .NAME.cpu-HEX            CRIU's files, made from its pages for a restore
//   .NAME.moving-HEX         empty; exists while a migration needs its images NAME-1, NAME-2, …
//   .NAME.sent-HEX           images with these names are in a repository (repository/sent_images.h)
//
// A process that works on a hidden folder, or reads an image, holds flock(LOCK_SH) on the folder;
// removing it needs LOCK_EX. The kernel releases the lock when the process exits or is killed, so
// an abandoned folder can be distinguished from one in use.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::store {

inline constexpr size_t kMaxImageNameBytes = 128;

// Returns kInvalidArgument unless `name` matches [A-Za-z0-9][A-Za-z0-9._-]{0,127}.
Status CheckImageName(const std::string& name);
// Returns whether the folder has a manifest. The manifest may be damaged.
bool HasManifest(const std::string& folder);

inline constexpr char kPartial[] = "partial";
inline constexpr char kDeleted[] = "deleted";
inline constexpr char kCpuFiles[] = "cpu";
inline constexpr char kMoving[] = "moving";
inline constexpr char kSent[] = "sent";
// Returns a new hidden name.
Result<std::string> HiddenName(const std::string& name, const char* purpose);
// Returns whether `name` is a hidden name of Stasis with this purpose. An empty `purpose` matches
// every purpose except kSent, because only the code that deletes the images in the repository may
// remove such a folder.
bool IsHiddenName(std::string_view name, std::string_view purpose = {});

enum class LockKind : uint8_t { kShared, kExclusive };
// Locks an open folder without waiting. Returns kAborted if another process holds it. A shared lock
// succeeds on file systems without locks.
Status LockFolder(int folder_fd, LockKind kind, const std::string& what);
// Returns whether `name` in `parent_fd` is the folder that `folder_fd` has open.
bool IsSameFolder(int parent_fd, const std::string& name, int folder_fd);
// Renames within a store. Returns kAlreadyExists if `to` exists.
Status RenameNoReplace(int store_fd, const std::string& from, const std::string& to);

// Creates a hidden folder of mode 0700 and takes the shared lock on it. Tries another name if a
// sweep removes the folder before it is locked. Calls `before` with each path before creating it.
struct Hidden {
  std::string name;
  UniqueFd fd;
};
Result<Hidden> MakeHidden(const std::string& store, const std::string& name, const char* purpose,
                          const std::function<Status(const std::string& path)>& before = nullptr);

// Removes a hidden folder. Syncs the hidden name before it removes files: otherwise, after a power
// failure, an image could appear under its former name with only a part of its files. Calls
// `removed` after each removed file.
Status RemoveHidden(int store_fd, const std::string& store, const std::string& name,
                    const std::function<void()>& removed = nullptr);

// If a system call in the store at `path` failed because the disk is full, adds the free bytes and
// a hint to its error.
Error WithSpaceHint(Error error, const std::string& path);
template <class T>
Result<T> WithSpaceHint(Result<T> result, const std::string& path) {
  if (!result) result.error() = WithSpaceHint(std::move(result.error()), path);
  return result;
}

// Returns `most`, or an eighth of the limit on open files if that is less. Several components may
// each keep this many files open.
size_t BoundedByOpenFiles(size_t most);

}  // namespace stasis::store
