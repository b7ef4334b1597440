// Writes one image, which is then either complete or absent. Everything goes into a hidden folder
// next to the image's future place and appears by one rename after all of it was checked, described
// and synced. Several threads may add and link packs at once; the rest is not thread-safe.
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
  // Told the bytes checked. Can cancel while files are checked and synced, not later.
  Progress progress;
  // Called with each step's name before the step; a failure replaces the step's own. For tests,
  // which fail, hang and die there.
  std::function<Status(std::string_view step)> before_step;
  // The key of the manifest's origin MAC; without a key there is no MAC.
  std::optional<OriginKey> origin;
};

struct RemovalOptions {
  // Called after each removed file: the store answers.
  std::function<void()> removed;
  // As in CommitOptions.
  std::function<Status(std::string_view step)> before_step;
};

class ImageWriter {
 public:
  // Creates the store if it is missing. Returns kAlreadyExists if `name` is taken, kInvalidArgument
  // if it is not a valid name.
  static Result<std::unique_ptr<ImageWriter>> Begin(const std::string& store,
                                                    const std::string& name);
  // Aborts if the image was not committed.
  ~ImageWriter();
  ImageWriter(const ImageWriter&) = delete;
  ImageWriter& operator=(const ImageWriter&) = delete;

  // The folder for CRIU's files, open until this object is gone. Files that appear there after
  // Commit (such as CRIU's stats-dump) do not become part of the image.
  int cpu_dir_fd() const { return criu_fd_.get(); }
  // That folder's path until Commit, by its descriptor, so that a renamed parent cannot redirect
  // it.
  std::string cpu_path() const { return "/proc/self/fd/" + std::to_string(criu_fd_.get()); }
  // The image's path after Commit.
  std::string path() const { return store_ + "/" + name_; }
  bool committed() const { return committed_; }
  // The descriptors that a forked process needs in order to write this image.
  std::vector<int> descriptors() const;
  // Notes that a forked process has committed the image.
  void NoteCommitted();
  // Leaves everything as it is: Abort and the destructor do nothing from now on.
  void Abandon();

  // Creates a file of mode 0600 at FOLDER/NAME (manifest_check.h), open for writing.
  Result<UniqueFd> AddFile(const std::string& path);
  // Creates the file of a new pack, `pack.path()`, empty (pack.h). Commit refuses packs without an
  // index and packs that the manifest does not list.
  Result<UniqueFd> AddPack(const Pack& pack);
  // Makes the file `name` that CRIU wrote that pack; the file has an index.
  Status AdoptPack(const std::string& name, const Pack& pack);
  // Makes the pack `pack.path()` of another image of this store a file of this one too: a hard
  // link, with a shared lock until this object is gone, so that gc leaves it alone. Fails and
  // changes nothing if the file system makes no link, if gc is working on the pack, and if it is
  // another file than `file`.
  Result<OpenedFile> LinkPack(int image_fd, const Pack& pack, const FileId& file);
  void UnlinkPack(const Pack& pack);
  // The folder with all images.
  const std::string& store() const { return store_; }
  // Adds a text, or the end of a file, as log/NAME. The beginning of a text longer than
  // kMaxLogBytes is replaced by a note.
  Status AddLog(const std::string& name, std::string_view text);
  Status AddLogFile(const std::string& name, const std::string& source);

  // Fills in the id (if there is none), time, files, and sizes and checksums of the packs of
  // `manifest`. On failure the image is absent, and Abort or the destructor removes what was
  // written. After success the image is complete on the disk, also after a power failure.
  Status Commit(Manifest& manifest, const CommitOptions& options);
  // The names of the steps of Commit, for tests that fail each.
  static std::vector<std::string_view> CommitSteps();

  // Removes the files that came too late. Call it when CRIU has ended.
  Status AfterCommit(const RemovalOptions& options = {});
  // Removes everything that is not committed, also if a forked process was killed in the middle of
  // Commit: its rename may still be on its way to a server, or wait in the kernel. The manifest is
  // removed first, so that such a rename never publishes an image. Safe to call again.
  Status Abort(const RemovalOptions& options = {});
  // The hidden folders that Abort removes, and AfterCommit after a Commit.
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
  Status SyncFiles(Commitment& commitment);
  Status WriteManifest(Commitment& commitment);
  Status SyncFolders(Commitment& commitment);
  Status Publish(Commitment& commitment);
  Status SyncStore(Commitment& commitment);

  std::string store_;
  std::string name_;
  std::string partial_;  // hidden names in the store
  std::string late_;
  // The parents of the store, and of folders above it, that were created here.
  std::vector<std::string> new_folders_parents_;
  UniqueFd store_fd_;
  UniqueFd partial_fd_;  // holds the lock on the partial image, until it is committed
  UniqueFd criu_fd_;
  UniqueFd criu_lock_;  // apart from criu_fd_, whose lock CRIU would inherit
  // Packs that are shared with other images, with their locks.
  std::mutex linked_mutex_;
  std::vector<std::pair<Id128, UniqueFd>> linked_packs_;
  bool late_exists_ = false;
  bool committed_ = false;
};

}  // namespace stasis::store
