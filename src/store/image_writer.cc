#include "store/image_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <unordered_map>

#include "base/file.h"
#include "base/own_path.h"
#include "store/beneath.h"
#include "store/clock.h"
#include "store/envelope.h"
#include "store/image_folder.h"
#include "store/manifest_check.h"
#include "store/manifest_codec.h"
#include "store/pack_index.h"

namespace stasis::store {

namespace fs = std::filesystem;

namespace {

constexpr char kCriuFolder[] = "criu";

// Returns whether a folder is created only when it is needed.
bool IsOptional(std::string_view folder) { return folder == kAgentFolder; }

Result<UniqueFd> MakeFolderAt(int parent_fd, const std::string& name) {
  if (::mkdirat(parent_fd, name.c_str(), 0700) != 0) return FailErrno(errno, "make folder " + name);
  return OpenBeneath(parent_fd, name, O_RDONLY | O_DIRECTORY);
}

}  // namespace

// The data that the steps of one Commit share.
struct ImageWriter::Commitment {
  Manifest& manifest;
  const CommitOptions& options;
};

struct ImageWriter::Step {
  std::string_view name;
  Status (ImageWriter::*run)(Commitment&);
};

// The order makes the commit atomic: the manifest is written after all files that it describes, and
// the image is renamed after all of them are on the disk.
const ImageWriter::Step ImageWriter::kSteps[] = {
    {"take CRIU's files", &ImageWriter::TakeCpuFiles},
    {"set late files aside", &ImageWriter::SetLateFilesAside},
    {"describe the packs", &ImageWriter::DescribePacks},
    {"checksum the files", &ImageWriter::ChecksumFiles},
    {"sync the files", &ImageWriter::SyncFiles},
    {"write the manifest", &ImageWriter::WriteManifest},
    {"sync the folders", &ImageWriter::SyncFolders},
    {"publish", &ImageWriter::Publish},
    {"sync the store", &ImageWriter::SyncStore},
};

Result<std::unique_ptr<ImageWriter>> ImageWriter::Begin(const std::string& store,
                                                        const std::string& name) {
  STASIS_TRY(CheckImageName(name));
  std::unique_ptr<ImageWriter> writer(new ImageWriter(AbsolutePath(store), name));
  STASIS_TRY(
      Annotate(WithSpaceHint(writer->CreatePartial(), store), "begin image " + writer->path()));
  return writer;
}

Status ImageWriter::CreatePartial() {
  fs::path there = store_;
  for (; !PathExists(there); there = there.parent_path()) {
    new_folders_parents_.push_back(there.parent_path());
  }
  STASIS_TRY(OpenOwn(there, O_PATH));  // create nothing behind a link of another user
  STASIS_TRY(MakeDirs(store_));
  STASIS_ASSIGN(store_fd_, OpenOwn(store_, O_RDONLY | O_DIRECTORY));
  if (PathExists(path())) {
    return Fail(Code::kAlreadyExists, Domain::kImage, 0, path() + " exists already",
                "Choose another name; an image is never overwritten.");
  }
  STASIS_ASSIGN(auto hidden,
                MakeHidden(fmt::format("/proc/self/fd/{}", store_fd_.get()), name_, kPartial));
  partial_ = std::move(hidden.name);
  partial_fd_ = std::move(hidden.fd);
  late_ = partial_ + ".late";
  for (std::string_view folder : kFolders) {
    if (IsOptional(folder)) continue;
    STASIS_TRY(MakeFolderAt(partial_fd_.get(), std::string(folder)));
  }
  STASIS_ASSIGN(criu_fd_, MakeFolderAt(partial_fd_.get(), kCriuFolder));
  STASIS_ASSIGN(criu_lock_, OpenBeneath(partial_fd_.get(), kCriuFolder, O_RDONLY | O_DIRECTORY));
  return LockFolder(criu_lock_.get(), LockKind::kShared, late_);
}

ImageWriter::~ImageWriter() {
  if (committed_) {
    (void)AfterCommit();  // a sweep removes files that this call leaves
  } else {
    (void)Abort();
  }
}

Status ImageWriter::MakeFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.find('/'));
  if (!IsOptional(folder) || ::mkdirat(partial_fd_.get(), folder.c_str(), 0700) == 0 ||
      errno == EEXIST) {
    return {};
  }
  return FailErrno(errno, "make folder " + folder);
}

Result<UniqueFd> ImageWriter::AddFile(const std::string& path) {
  STASIS_TRY(CheckFilePath(path));
  STASIS_TRY(MakeFolderOf(path));
  return WithSpaceHint(OpenBeneath(partial_fd_.get(), path, O_WRONLY | O_CREAT | O_EXCL), store_);
}

Result<UniqueFd> ImageWriter::AddPack(const Pack& pack) { return AddFile(pack.path()); }

Status ImageWriter::AdoptPack(const std::string& name, const Pack& pack) {
  if (::renameat2(criu_fd_.get(), name.c_str(), partial_fd_.get(), pack.path().c_str(),
                  RENAME_NOREPLACE) == 0) {
    return {};
  }
  return FailErrno(errno, "move " + name + " to " + pack.path());
}

Result<OpenedFile> ImageWriter::LinkPack(int image_fd, const Pack& pack, const FileId& file) {
  const std::string path = pack.path();
  STASIS_TRY(MakeFolderOf(path));
  if (::linkat(image_fd, path.c_str(), partial_fd_.get(), path.c_str(), 0) != 0) {
    return FailErrno(errno, "link " + path);
  }
  auto checked = [&]() -> Result<OpenedFile> {
    STASIS_ASSIGN(OpenedFile opened, OpenRegular(partial_fd_.get(), path));
    struct stat st;
    if (::fstat(opened.fd.get(), &st) != 0) return FailErrno(errno, "stat " + path);
    if (FileId::Of(st) != file) return Fail(Code::kAborted, path + " was replaced meanwhile");
    // Unlike the lock of a folder, the lock of a pack is required: without locks a running gc
    // cannot be detected.
    if (TEMP_FAILURE_RETRY(::flock(opened.fd.get(), LOCK_SH | LOCK_NB)) != 0) {
      return FailErrno(errno, "lock " + path);
    }
    UniqueFd lock(::fcntl(opened.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!lock) return FailErrno(errno, "keep " + path + " open");
    std::lock_guard guard(linked_mutex_);
    linked_packs_.emplace_back(pack.id, std::move(lock));
    return opened;
  }();
  if (!checked) ::unlinkat(partial_fd_.get(), path.c_str(), 0);
  return checked;
}

void ImageWriter::UnlinkPack(const Pack& pack) {
  ::unlinkat(partial_fd_.get(), pack.path().c_str(), 0);
  std::lock_guard guard(linked_mutex_);
  std::erase_if(linked_packs_, [&](const auto& linked) { return linked.first == pack.id; });
}

Status ImageWriter::AddLog(const std::string& name, std::string_view text) {
  std::string note;
  if (text.size() > kMaxLogBytes) {
    constexpr size_t kNoteBytes = 128;
    size_t cut = text.size() - (kMaxLogBytes - kNoteBytes);
    text.remove_prefix(cut);
    note = fmt::format("[stasis: the first {} bytes of this log were left out]\n", cut);
  }
  STASIS_ASSIGN(UniqueFd fd, AddFile("log/" + name));
  Status status = WriteAll(fd.get(), note);
  if (status) status = WriteAll(fd.get(), text);
  return Annotate(WithSpaceHint(std::move(status), store_), "add log " + name);
}

Status ImageWriter::AddLogFile(const std::string& name, const std::string& source) {
  STASIS_ASSIGN(UniqueFd fd, Open(source, O_RDONLY));
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return FailErrno(errno, "stat " + source);
  auto size = static_cast<uint64_t>(st.st_size);
  // Read one byte more than AddLog keeps, so that it adds the note about the missing beginning.
  uint64_t wanted = std::min(size, kMaxLogBytes + 1);
  std::string text(wanted, '\0');
  STASIS_TRY(PreadAll(fd.get(), text.data(), wanted, size - wanted));
  return AddLog(name, text);
}

std::vector<std::string_view> ImageWriter::CommitSteps() {
  std::vector<std::string_view> names;
  for (const Step& step : kSteps) names.push_back(step.name);
  return names;
}

Status ImageWriter::Commit(Manifest& manifest, const CommitOptions& options) {
  if (committed_) return Fail(Code::kInternal, path() + " was committed already");
  Commitment commitment{manifest, options};
  for (const Step& step : kSteps) {
    Status status;
    if (options.before_step) status = options.before_step(step.name);
    if (status) status = (this->*step.run)(commitment);
    if (status) continue;
    // If the last step failed, the image is already published and must be hidden again. The sync
    // ensures that a power failure does not bring back its name after Abort has removed files.
    if (committed_) {
      Status undone = RenameNoReplace(store_fd_.get(), name_, partial_);
      if (undone) {
        committed_ = false;
        if (::fsync(store_fd_.get()) != 0) undone = FailErrno(errno, "sync " + store_);
      }
      if (!undone) {
        status.error().not_undone = true;
        status.error().message +=
            "; " + path() + " could not be hidden again: " + undone.error().ToString();
      }
    }
    return Fail(WithSpaceHint(std::move(status.error()), store_)
                    .WithContext(std::string(step.name))
                    .WithContext("write image " + path()));
  }
  // From now on other processes may read and delete the image.
  partial_fd_.Reset();
  linked_packs_.clear();
  return {};
}

// CRIU still has its folder open and may write to it again, so its files are moved, not the folder.
Status ImageWriter::TakeCpuFiles(Commitment&) {
  STASIS_ASSIGN(auto entries, ListFolder(criu_fd_.get()));
  for (const Entry& entry : entries) {
    std::string to = "cpu/" + entry.name;
    STASIS_TRY(CheckFilePath(to));
    if (!entry.is_regular) {
      return Fail(Code::kInternal, Domain::kImage, 0,
                  "CRIU wrote " + Printable(entry.name) + ", which is not a regular file");
    }
    if (::renameat2(criu_fd_.get(), entry.name.c_str(), partial_fd_.get(), to.c_str(),
                    RENAME_NOREPLACE) != 0) {
      return FailErrno(errno, "move " + entry.name + " to " + to);
    }
  }
  return {};
}

Status ImageWriter::SetLateFilesAside(Commitment&) {
  if (::renameat(partial_fd_.get(), kCriuFolder, store_fd_.get(), late_.c_str()) != 0) {
    return FailErrno(errno, "move CRIU's folder aside");
  }
  late_exists_ = true;
  return {};
}

std::vector<std::string> ImageWriter::Folders() const {
  std::vector<std::string> folders(std::begin(kFolders), std::end(kFolders));
  std::erase_if(folders, [&](const std::string& folder) {
    return IsOptional(folder) &&
           ::faccessat(partial_fd_.get(), folder.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0;
  });
  return folders;
}

// Reads only the indexes of packs: the checksums of units were computed when they were written.
// Checks that every run is in its pack, and that no linked pack has changed since it was checked.
Status ImageWriter::DescribePacks(Commitment& commitment) {
  Manifest& manifest = commitment.manifest;
  std::unordered_map<std::string, size_t> listed;  // indexes into the manifest's packs
  for (size_t i = 0; i < manifest.packs.size(); ++i) listed.emplace(manifest.packs[i].path(), i);
  std::vector<uint64_t> units(manifest.packs.size());
  STASIS_ASSIGN(UniqueFd fd, OpenBeneath(partial_fd_.get(), kPacksFolder, O_RDONLY | O_DIRECTORY));
  STASIS_ASSIGN(auto entries, ListFolder(fd.get()));
  for (const Entry& entry : entries) {
    const std::string path = std::string(kPacksFolder) + "/" + entry.name;
    STASIS_ASSIGN(OpenedFile opened, OpenRegular(partial_fd_.get(), path));
    // Reading the index here detects an unfinished pack now, instead of during a restore.
    STASIS_ASSIGN(PackIndex index, ReadPackIndex(opened.fd.get(), opened.size_bytes, path));
    auto at = listed.find(path);
    if (at == listed.end() || manifest.packs[at->second].id != index.id ||
        manifest.packs[at->second].unit_bytes != index.unit_bytes) {
      return Fail(Code::kInternal, Domain::kImage, 0, path + " is a pack that nothing refers to");
    }
    Pack& pack = manifest.packs[at->second];
    if (pack.linked &&
        (pack.size_bytes != opened.size_bytes || pack.index_checksum != index.checksum)) {
      return DamagedPack(path, "it changed after it was linked");
    }
    pack.size_bytes = opened.size_bytes;
    pack.index_checksum = index.checksum;
    units[at->second] = index.units.size();
    listed.erase(at);
  }
  if (!listed.empty()) {
    return Fail(Code::kInternal, Domain::kImage, 0, listed.begin()->first + " was never written");
  }
  auto check = [&](const std::vector<UnitRun>& runs) -> Status {
    for (const UnitRun& run : runs) {
      if (run.is_zero()) continue;
      if (run.pack >= units.size() || uint64_t{run.first} + run.units > units[run.pack]) {
        return Fail(Code::kInternal, Domain::kImage, 0,
                    fmt::format("unit {} of pack {} was never written",
                                uint64_t{run.first} + run.units - 1, run.pack));
      }
    }
    return {};
  };
  for (const DeviceRange& range : manifest.ranges) STASIS_TRY(check(range.runs));
  for (const PageFile& file : manifest.page_files) STASIS_TRY(check(file.runs));
  return {};
}

Status ImageWriter::ChecksumFiles(Commitment& commitment) {
  Manifest& manifest = commitment.manifest;
  if (manifest.image_id.IsZero()) {
    STASIS_ASSIGN(manifest.image_id, Id128::Random());
  }
  const Manifest* expected = commitment.options.expected_files;
  manifest.chunk_bytes = expected != nullptr ? expected->chunk_bytes : kChunkBytes;

  std::vector<ChecksumJob> jobs;
  for (const std::string& folder : Folders()) {
    if (folder == kPacksFolder) continue;
    STASIS_ASSIGN(UniqueFd fd, OpenBeneath(partial_fd_.get(), folder, O_RDONLY | O_DIRECTORY));
    STASIS_ASSIGN(auto entries, ListFolder(fd.get()));
    for (const Entry& entry : entries) {
      std::string path = folder + "/" + entry.name;
      STASIS_ASSIGN(OpenedFile opened, OpenRegular(partial_fd_.get(), path));
      jobs.push_back({{path, opened.size_bytes, {}}, {}});
    }
  }
  STASIS_TRY(ComputeChecksums(partial_fd_.get(), manifest.chunk_bytes, jobs, Writeback::kStart,
                              commitment.options.progress));
  manifest.files.clear();
  for (ChecksumJob& job : jobs) {
    if (job.error) return Fail(std::move(*job.error).WithContext(job.file.path));
    manifest.files.push_back(std::move(job.file));
  }
  return expected != nullptr ? CompareFiles(manifest, *expected) : Status();
}

Status ImageWriter::CompareFiles(const Manifest& manifest, const Manifest& expected) const {
  std::unordered_map<std::string_view, const File*> by_path;
  for (const File& file : expected.files) by_path.emplace(file.path, &file);
  for (const File& file : manifest.files) {
    const auto found = by_path.find(file.path);
    if (found == by_path.end() || found->second->size_bytes != file.size_bytes ||
        found->second->checksums != file.checksums) {
      return Fail(Code::kDataLoss, Domain::kImage, 0,
                  file.path + " differs from the file of the original image");
    }
  }
  if (manifest.files.size() == expected.files.size()) return {};
  return Fail(Code::kDataLoss, Domain::kImage, 0, "files of the original image are missing");
}

Status ImageWriter::SyncFiles(Commitment& commitment) {
  std::vector<std::string> paths;
  for (const File& file : commitment.manifest.files) paths.push_back(file.path);
  // Sync the packs of earlier images too: such an image may be a copy, and cp does not sync files.
  // Syncing a file again costs almost nothing.
  for (const Pack& pack : commitment.manifest.packs) paths.push_back(pack.path());
  uint64_t total = commitment.manifest.TotalBytes();
  // All bytes have been counted already, so the callback only checks whether to cancel.
  return SyncAll(partial_fd_.get(), paths, [&](uint64_t, uint64_t) {
    const Progress& progress = commitment.options.progress;
    return !progress || progress(total, total);
  });
}

Status ImageWriter::WriteManifest(Commitment& commitment) {
  commitment.manifest.created_unix_ns = commitment.options.created_unix_ns.value_or(UnixNow());
  STASIS_ASSIGN(std::string body, EncodeManifest(commitment.manifest));
  STASIS_ASSIGN(UniqueFd fd,
                OpenBeneath(partial_fd_.get(), kManifestName, O_WRONLY | O_CREAT | O_EXCL));
  const auto& origin = commitment.options.origin;
  STASIS_TRY(WriteAll(
      fd.get(), SealEnvelope(body, FeaturesOf(commitment.manifest), origin ? &*origin : nullptr)));
  if (::fsync(fd.get()) != 0) return FailErrno(errno, std::string("sync ") + kManifestName);
  return {};
}

Status ImageWriter::SyncFolders(Commitment&) {
  STASIS_TRY(SyncAll(partial_fd_.get(), Folders(), nullptr));
  if (::fsync(partial_fd_.get()) != 0) return FailErrno(errno, "sync " + partial_);
  return {};
}

Status ImageWriter::Publish(Commitment&) {
  STASIS_TRY(RenameNoReplace(store_fd_.get(), partial_, name_));
  committed_ = true;
  return {};
}

Status ImageWriter::SyncStore(Commitment&) {
  if (::fsync(store_fd_.get()) != 0) return FailErrno(errno, "sync " + store_);
  for (const std::string& folder : new_folders_parents_) STASIS_TRY(FsyncPath(folder));
  return {};
}

Status ImageWriter::AfterCommit(const RemovalOptions& options) {
  if (!late_exists_) return {};
  STASIS_TRY(RemoveTree(late_path(), options.removed));
  late_exists_ = false;
  return {};
}

std::vector<int> ImageWriter::descriptors() const {
  return {store_fd_.get(), partial_fd_.get(), criu_fd_.get(), criu_lock_.get()};
}

void ImageWriter::NoteCommitted() {
  committed_ = true;
  late_exists_ = true;
  partial_fd_.Reset();
}

void ImageWriter::Abandon() {
  partial_.clear();
  late_exists_ = false;
}

Status ImageWriter::Abort(const RemovalOptions& options) {
  if (committed_ || partial_.empty()) return {};
  auto before = [&](std::string_view step) {
    return options.before_step ? options.before_step(step) : Status{};
  };
  // Use the folder's descriptor, which stays valid when the folder is renamed and needs no lock on
  // the store. If this call hangs and the process is killed, the kernel still completes it.
  STASIS_TRY(before("remove the manifest"));
  if (::unlinkat(partial_fd_.get(), kManifestName, 0) != 0 && errno != ENOENT) {
    return FailErrno(errno, fmt::format("remove {}/{}", partial_path(), kManifestName));
  }
  STASIS_TRY(before("remove late files"));
  late_exists_ = true;
  STASIS_TRY(AfterCommit(options));
  // Repeat if a pending rename has happened between the two steps.
  do {
    STASIS_TRY(before("hide the folder"));
    if (IsSameFolder(store_fd_.get(), name_, partial_fd_.get())) {
      STASIS_TRY(RenameNoReplace(store_fd_.get(), name_, partial_));
    }
    STASIS_TRY(before("remove the folder"));
    STASIS_TRY(RemoveHidden(store_fd_.get(), store_, partial_, options.removed));
  } while (IsSameFolder(store_fd_.get(), name_, partial_fd_.get()));
  return {};
}

}  // namespace stasis::store
