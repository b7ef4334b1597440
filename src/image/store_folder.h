// A folder that holds images, one sub-folder each. Hidden sub-folders are images that are being
// written or deleted:
//
//   .NAME.partial-HEX        being written (writer.h)
//   .NAME.partial-HEX.late   what CRIU wrote too late to be part of the image
//   .NAME.deleted-HEX        being deleted
//
// Whoever works on one holds flock(LOCK_SH) on it, and so does whoever reads an image; whoever
// removes one must first get LOCK_EX. The kernel drops the lock when its holder dies, however it
// dies: that is how an abandoned one is told from a live one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::image {

// [A-Za-z0-9][A-Za-z0-9._-]{0,127}, else kInvalidArgument.
Status CheckImageName(const std::string& name);

// IMAGE as the user typed it: a path when it holds a '/' or is a folder here, else a name looked
// for in `stores`, in order. kNotFound says where was looked.
Result<std::string> ResolveImage(const std::vector<std::string>& stores,
                                 const std::string& name_or_path);

// Names of the images in a store: sub-folders that are not hidden and hold a manifest, whole or
// not. A store that does not exist holds none.
Result<std::vector<std::string>> ListImages(const std::string& store);

// Removes what a killed writer or deleter left behind; what is still worked on is left alone.
// Returns the names removed.
Result<std::vector<std::string>> SweepPartials(const std::string& store);

// Hides the image in one step, then removes it. kInvalidArgument when `path` is no image (a folder
// with a manifest and nothing but an image's parts; a damaged one may be deleted), kAborted while
// it is being read.
// `before_step` is called with "hide" and "remove"; for tests, which fail and die there.
Status DeleteImage(const std::string& path,
                   const std::function<Status(std::string_view step)>& before_step = nullptr);

// An error of a system call in the store at `path`, with what a user can do when there was no
// space.
Error WithSpaceHint(Error error, const std::string& path);
// kResourceExhausted now rather than later when fewer than `needed_bytes` are free at `path`.
Status CheckSpace(const std::string& path, uint64_t needed_bytes);

namespace internal {

enum class LockKind : uint8_t { kShared, kExclusive };
// flock without waiting, on an open folder. kAborted when somebody else holds it; success where the
// file system knows no locks and the lock is shared.
Status LockFolder(int folder_fd, LockKind kind, const std::string& what);
// True while `name` in `parent_fd` is the very folder that `folder_fd` has open.
bool IsSameFolder(int parent_fd, const std::string& name, int folder_fd);
// renameat2(RENAME_NOREPLACE) within one store; kAlreadyExists when `to` is taken.
Status RenameNoReplace(int store_fd, const std::string& from, const std::string& to);
Result<std::string> HiddenName(const std::string& name, const char* purpose);

}  // namespace internal

}  // namespace stasis::image
