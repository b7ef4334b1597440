// An image as a folder of its store: what it may be called, the names and locks it has while it is
// written and while it is deleted. Hidden folders are images that are on their way:
//
//   .NAME.partial-HEX        being written (writer.h)
//   .NAME.partial-HEX.late   what CRIU wrote too late to be part of the image
//   .NAME.deleted-HEX        being deleted (store/store_folder.h)
//   .NAME.cpu-HEX            CRIU's files, made of its pages for a restore of it
//
// Whoever works on one holds flock(LOCK_SH) on it, and so does whoever reads an image; whoever
// removes one must first get LOCK_EX. The kernel drops the lock when its holder dies, however it
// dies: that is how an abandoned one is told from a live one.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::image {

inline constexpr size_t kMaxImageNameBytes = 128;

// [A-Za-z0-9][A-Za-z0-9._-]{0,127}, else kInvalidArgument.
Status CheckImageName(const std::string& name);
// Whether the folder has a manifest, whole or not.
bool HasManifest(const std::string& folder);

inline constexpr char kPartial[] = "partial";
inline constexpr char kDeleted[] = "deleted";
inline constexpr char kCpuFiles[] = "cpu";
// A new one of the hidden names above.
Result<std::string> HiddenName(const std::string& name, const char* purpose);
// Whether it is one: ours, and nobody else's. With a purpose: one for that.
bool IsHiddenName(std::string_view name, std::string_view purpose = {});

enum class LockKind : uint8_t { kShared, kExclusive };
// flock without waiting, on an open folder. kAborted when somebody else holds it; success where the
// file system knows no locks and the lock is shared.
Status LockFolder(int folder_fd, LockKind kind, const std::string& what);
// True while `name` in `parent_fd` is the very folder that `folder_fd` has open.
bool IsSameFolder(int parent_fd, const std::string& name, int folder_fd);
// renameat2(RENAME_NOREPLACE) within one store; kAlreadyExists when `to` is taken.
Status RenameNoReplace(int store_fd, const std::string& from, const std::string& to);

// A new hidden folder of mode 0700 and its lock, shared. `before` is called with the path of each
// that is made, before that is there: whoever sweeps may take one away before it is locked.
struct Hidden {
  std::string name;
  UniqueFd fd;
};
Result<Hidden> MakeHidden(const std::string& store, const std::string& name, const char* purpose,
                          const std::function<Status(const std::string& path)>& before = nullptr);

// Removes a hidden folder. Its hidden name is on the disk before anything of it goes: else a power
// cut could leave an image under the name it had before, with a part of its files. `removed` is
// called behind each file that has gone.
Status RemoveHidden(int store_fd, const std::string& store, const std::string& name,
                    const std::function<void()>& removed = nullptr);

// An error of a system call in the store at `path`, with what a user can do when there was no
// space.
Error WithSpaceHint(Error error, const std::string& path);

}  // namespace stasis::image
