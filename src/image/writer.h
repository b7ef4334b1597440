// Writes one image: complete, or not there. Everything goes into a hidden folder beside the place
// where the image will be, and appears by one rename after all of it was checked, described and
// synced. Packs may be added and linked by several threads at once; the rest is not thread-safe.
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
#include "image/file_check.h"
#include "image/manifest.h"
#include "image/origin.h"
#include "image/pack.h"

namespace stasis::image {

struct CommitOptions {
  // Bytes checked, of all. False cancels while files are checked and synced, not later.
  Progress progress;
  // Called with each step's name before the step; a failure stands for the step's own. For tests,
  // which fail, hang and die there.
  std::function<Status(std::string_view step)> before_step;
  // The manifest gets an origin MAC by this key; without one it has none.
  std::optional<OriginKey> origin;
};

struct RemovalOptions {
  // Called behind each file that has gone: the store answers.
  std::function<void()> removed;
  // As in CommitOptions.
  std::function<Status(std::string_view step)> before_step;
};

class ImageWriter {
 public:
  // Creates the store if it is missing. kAlreadyExists when `name` is taken, kInvalidArgument when
  // it cannot be a name.
  static Result<std::unique_ptr<ImageWriter>> Begin(const std::string& store,
                                                    const std::string& name);
  // Aborts what was not committed.
  ~ImageWriter();
  ImageWriter(const ImageWriter&) = delete;
  ImageWriter& operator=(const ImageWriter&) = delete;

  // The folder that CRIU is to dump into, open until this object goes. What appears there after
  // Commit (CRIU's stats-dump may) does not become part of the image.
  int cpu_dir_fd() const { return criu_fd_.get(); }
  // That folder's path until Commit.
  // By its descriptor: whoever may rename what the store lies in cannot put another in its place.
  std::string cpu_path() const { return "/proc/self/fd/" + std::to_string(criu_fd_.get()); }
  // Where the image will be, and is after Commit.
  std::string path() const { return store_ + "/" + name_; }
  bool committed() const { return committed_; }
  // The descriptors that a forked process needs in order to write this image.
  std::vector<int> descriptors() const;
  // A forked process has committed the image.
  void NoteCommitted();
  // Leaves everything as it is: Abort and the destructor do nothing any more.
  void Abandon();

  // A new file of mode 0600 at FOLDER/NAME (manifest_check.h), open for writing.
  Result<UniqueFd> AddFile(const std::string& path);
  // A new pack, as gpu/ID.pack. It must be finished before Commit, which refuses one that is not,
  // and one that the manifest does not list.
  Result<PackWriter> AddPack();
  // A new pack of pages, as `pack.path()`: an empty file for its extents, FinishPagePack ends it.
  Result<UniqueFd> AddPagePack(const Pack& pack);
  // The file `name` that CRIU wrote becomes that pack; it has an index by then.
  Status TakeAsPagePack(const std::string& name, const Pack& pack);
  // The pack `pack.path()` of another image of this store, as a file of this one too: a hard link,
  // locked (shared) until this object goes, so that gc leaves it alone. Fails where the file system
  // makes no link, where gc is at it, and when it is another file than `file`: nothing is changed.
  Result<OpenedFile> LinkPack(int image_fd, const Pack& pack, const FileId& file);
  void UnlinkPack(const Pack& pack);
  // The folder with all images.
  const std::string& store() const { return store_; }
  // A text as log/NAME, and the end of a file; what is longer than kMaxLogBytes loses its
  // beginning, and says so.
  Status AddLog(const std::string& name, std::string_view text);
  Status AddLogFile(const std::string& name, const std::string& source);

  // Fills in the id (if there is none), time, files, and sizes and checksums of the packs of
  // `manifest`. On failure the image is not
  // there, and Abort or the destructor removes what was written. Once it has returned success the
  // image is complete on the disk, also after a power failure.
  Status Commit(Manifest& manifest, const CommitOptions& options);
  // The steps of Commit, for whoever wants to fail each.
  static std::vector<std::string_view> CommitSteps();

  // Removes what came too late. To be called when CRIU has ended.
  Status AfterCommit(const RemovalOptions& options = {});
  // Removes everything that is not committed, also when a forked process was ended in the middle of
  // Commit: its rename may still be on its way to a server, or wait in the kernel. The manifest
  // goes first, so that such a rename publishes no image whenever it comes. May be called at any
  // time and again.
  Status Abort(const RemovalOptions& options = {});
  // The paths of the hidden folders that Abort, or after Commit AfterCommit, removes.
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
  std::vector<std::string> Folders() const;  // those that this image has
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
  // Where the store itself, and the folders above it, are new names, if we made them.
  std::vector<std::string> new_folders_parents_;
  UniqueFd store_fd_;
  UniqueFd partial_fd_;  // holds the lock on the partial image, until it is committed
  UniqueFd criu_fd_;
  UniqueFd criu_lock_;  // apart from criu_fd_, whose lock CRIU would inherit
  // Of packs that are other images' too, with the lock.
  std::mutex linked_mutex_;
  std::vector<std::pair<Id128, UniqueFd>> linked_packs_;
  bool late_exists_ = false;
  bool committed_ = false;
};

}  // namespace stasis::image
