// Writes one image, which is then either complete or absent. All files are written to a hidden
// folder in the store. One rename publishes the image after its files were checksummed, listed in
// the manifest and synced. Several threads may add and link packs at the same time; the other
// methods are not thread-safe.
//
//   auto writer = ImageWriter::Begin(store, "llama-3");
//   ... CRIU dumps into (*writer)->cpu_dir_fd() ...
//   (*writer)->AddLogFile("criu-dump.log", work_dir + "/dump.log");
//   (*writer)->Commit(manifest, {});        // inside CRIU's post-dump notification
//   ... CRIU ends ...
//   (*writer)->AfterCommit();
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"
#include "store/beneath.h"
#include "store/file_check.h"
#include "store/manifest.h"
#include "store/origin.h"

namespace stasis::store {

struct CommitOptions {
  // Called with the number of bytes whose checksums were computed. Can cancel while files are
  // checksummed and synced, but not later.
  Progress progress;
  // Called with the name of each step before the step. An error makes the step fail without running
  // it. For tests, which return an error, block or kill the process there.
  std::function<Status(std::string_view step)> before_step;
  // The key of the manifest's origin MAC; without a key there is no MAC.
  std::optional<OriginKey> origin;
  // For a copy of an image: the time when the image was created, and its manifest, which must
  // outlive the call. Commit returns kDataLoss if the files are not those of that manifest.
  std::optional<int64_t> created_unix_ns;
  const Manifest* expected_files = nullptr;
};

struct RemovalOptions {
  // Called after each removed file, as a sign that the file system of the store is not hung.
  std::function<void()> removed;
  // Called before each step, like CommitOptions::before_step.
  std::function<Status(std::string_view step)> before_step;
};

class ImageWriter {
 public:
  // Creates the store if it is missing. Returns kAlreadyExists if the name is taken, and
  // kInvalidArgument if it is not valid.
  static Result<std::unique_ptr<ImageWriter>> Begin(const std::string& store,
                                                    const std::string& name);
  // Calls Abort if the image was not committed.
  ~ImageWriter();
  ImageWriter(const ImageWriter&) = delete;
  ImageWriter& operator=(const ImageWriter&) = delete;

  // The folder for CRIU's files, open until this object is destroyed. Files that CRIU writes there
  // after Commit (such as stats-dump) do not become part of the image.
  int cpu_dir_fd() const { return criu_fd_.get(); }
  // The path of that folder until Commit. The path names the descriptor, so a renamed parent folder
  // cannot redirect it.
  std::string cpu_path() const { return "/proc/self/fd/" + std::to_string(criu_fd_.get()); }
  // The image's path after Commit.
  std::string path() const { return store_ + "/" + name_; }
  bool committed() const { return committed_; }
  // The descriptors that a forked process needs in order to write this image.
  std::vector<int> descriptors() const;
  // Records that a forked process has committed the image.
  void NoteCommitted();
  // Keeps all files: Abort and the destructor do nothing from now on.
  void Abandon();

  // Creates a file of mode 0600 at FOLDER/NAME (manifest_check.h), open for writing.
  Result<UniqueFd> AddFile(const std::string& path);
  // Creates the file of a new pack, `pack.path()`, empty (pack.h). Commit refuses packs without an
  // index and packs that the manifest does not list.
  Result<UniqueFd> AddPack(const Pack& pack);
  // Moves the file `name` to `pack.path()`. CRIU wrote this file, and an index was appended to it.
  Status AdoptPack(const std::string& name, const Pack& pack);
  // Adds a hard link to the pack `pack.path()` of another image of this store. Holds a shared lock
  // on the pack until this image is committed or this object is destroyed, so that gc does not
  // change it. Fails without changing anything if the file system does not support links, gc is
  // working on the pack, or the pack is not the file `file`.
  Result<OpenedFile> LinkPack(int image_fd, const Pack& pack, const FileId& file);
  void UnlinkPack(const Pack& pack);
  // The folder with all images.
  const std::string& store() const { return store_; }
  // Adds a text, or the end of a file, as log/NAME. The beginning of a text longer than
  // kMaxLogBytes is replaced by a note.
  Status AddLog(const std::string& name, std::string_view text);
  Status AddLogFile(const std::string& name, const std::string& source);

  // Fills in the id (if there is none), time, files, and sizes and checksums of the packs of
  // `manifest`. On failure the image is absent, and Abort or the destructor removes all files.
  // After success the image is complete and survives a power failure.
  Status Commit(Manifest& manifest, const CommitOptions& options);
  // Returns the names of the steps of Commit, for tests that make each of them fail.
  static std::vector<std::string_view> CommitSteps();

  // Removes the files that CRIU wrote after Commit. Call this when CRIU has exited.
  Status AfterCommit(const RemovalOptions& options = {});
  // Removes everything that was not committed, even if a forked process was killed during Commit.
  // The rename of that process may still be pending in the kernel or on a file server. Therefore
  // the manifest is removed first, so that a pending rename cannot publish an image. Can be called
  // again after a failure.
  Status Abort(const RemovalOptions& options = {});
  // The hidden folders. Abort removes both, AfterCommit only the second.
  std::string partial_path() const { return store_ + "/" + partial_; }
  std::string late_path() const { return store_ + "/" + late_; }

 private:
  struct Step;
  struct Commitment;
  static const Step kSteps[];

  ImageWriter(std::string store, std::string name)
      : store_(std::move(store)), name_(std::move(name)) {}
  Status CreatePartial();

  Status MakeFolderOf(const std::string& path);
  std::vector<std::string> Folders() const;  // of this image
  Status TakeCpuFiles(Commitment& commitment);
  Status SetLateFilesAside(Commitment& commitment);
  Status DescribePacks(Commitment& commitment);
  Status ChecksumFiles(Commitment& commitment);
  Status CompareFiles(const Manifest& manifest, const Manifest& expected) const;
  Status SyncFiles(Commitment& commitment);
  Status WriteManifest(Commitment& commitment);
  Status SyncFolders(Commitment& commitment);
  Status Publish(Commitment& commitment);
  Status SyncStore(Commitment& commitment);

  std::string store_;
  std::string name_;
  std::string partial_;  // hidden names in the store
  std::string late_;
  // The parents of the folders that were created for the store: they must be synced too.
  std::vector<std::string> new_folders_parents_;
  UniqueFd store_fd_;
  UniqueFd partial_fd_;  // holds the lock on the partial image, until it is committed
  UniqueFd criu_fd_;
  UniqueFd criu_lock_;  // not criu_fd_, because CRIU would inherit its lock
  // Packs that are shared with other images, with their locks.
  std::mutex linked_mutex_;
  std::vector<std::pair<Id128, UniqueFd>> linked_packs_;
  bool late_exists_ = false;
  bool committed_ = false;
};

}  // namespace stasis::store
