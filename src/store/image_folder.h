// An image as a folder of its store: valid names, and the hidden names and locks while it is
// written, deleted or restored:
//
//   .NAME.partial-HEX        being written (image_writer.h)
//   .NAME.partial-HEX.late   files that CRIU wrote too late to be part of the image
//   .NAME.deleted-HEX        being deleted (store/store_folder.h)
//   .NAME.cpu-HEX            CRIU's files, made from its pages for a restore
//
// A process that works on a hidden folder, or reads an image, holds flock(LOCK_SH) on it; removing
// it needs LOCK_EX. The kernel releases the lock when its holder ends in any way, so an abandoned
// folder can be told from one in use.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::store {

inline constexpr size_t kMaxImageNameBytes = 128;

// [A-Za-z0-9][A-Za-z0-9._-]{0,127}, else kInvalidArgument.
Status CheckImageName(const std::string& name);
// Returns whether the folder has a manifest, intact or not.
bool HasManifest(const std::string& folder);

inline constexpr char kPartial[] = "partial";
inline constexpr char kDeleted[] = "deleted";
inline constexpr char kCpuFiles[] = "cpu";
// Returns a new hidden name.
Result<std::string> HiddenName(const std::string& name, const char* purpose);
// Returns whether `name` is a hidden name of Stasis; with a purpose, one for that.
bool IsHiddenName(std::string_view name, std::string_view purpose = {});

enum class LockKind : uint8_t { kShared, kExclusive };
// Locks an open folder without waiting. Returns kAborted if another process holds it. A shared lock
// succeeds on file systems without locks.
Status LockFolder(int folder_fd, LockKind kind, const std::string& what);
// Returns whether `name` in `parent_fd` is the folder that `folder_fd` has open.
bool IsSameFolder(int parent_fd, const std::string& name, int folder_fd);
// Renames within a store. Returns kAlreadyExists if `to` is taken.
Status RenameNoReplace(int store_fd, const std::string& from, const std::string& to);

// Creates a hidden folder of mode 0700 and locks it, shared. `before` is called with each path that
// is tried, before it exists: a sweep may remove a folder before it is locked.
struct Hidden {
  std::string name;
  UniqueFd fd;
};
Result<Hidden> MakeHidden(const std::string& store, const std::string& name, const char* purpose,
                          const std::function<Status(const std::string& path)>& before = nullptr);

// Removes a hidden folder. Its hidden name is synced before anything is removed: otherwise a power
// cut could leave an image under its former name with a part of its files. `removed` is called
// after each removed file.
Status RemoveHidden(int store_fd, const std::string& store, const std::string& name,
                    const std::function<void()>& removed = nullptr);

// Adds to an error of a system call in the store at `path` what the user can do if the disk is
// full.
Error WithSpaceHint(Error error, const std::string& path);

// Raises the limit of open files: a store may have many images and packs open at once.
void AllowManyFiles();
// Returns `most`, or an eighth of the limit of open files if that is less: several parts of a
// program may each keep so many open.
size_t BoundedByOpenFiles(size_t most);

}  // namespace stasis::store
