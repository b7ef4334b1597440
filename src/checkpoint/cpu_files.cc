#include "checkpoint/cpu_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "checkpoint/teardown.h"
#include "dataplane/arena_place.h"
#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/store_folder.h"
#include "store/unit_reader.h"

namespace stasis::checkpoint {
namespace {

// Returns the path of the symbolic link with which a restore records the folder of its files.
std::string LinkTo(const Paths& paths, const process::ProcessId& owner) {
  return WorkFolder(paths, owner) + "/cpu-files";
}

uint64_t PageBytes(const std::vector<store::PageFile>& files) {
  uint64_t bytes = 0;
  for (const auto& file : files) {
    bytes += file.size_bytes - store::ZeroBytes(file.runs, store::kPageBytes, file.size_bytes);
  }
  return bytes;
}

// Returns the image's path without a trailing '/'.
std::filesystem::path PathOf(const store::ImageReader& image) {
  const std::filesystem::path path = image.path();
  return path.has_filename() ? path : path.parent_path();
}

// Removes abandoned folders of CRIU's files in `folder`. Ignores errors, because the folder may
// contain files of other users, or be read-only.
void Sweep(const std::string& folder) { (void)store::SweepPartials(folder, store::kCpuFiles); }

// A folder that has too little space. If no folder has enough, the error lists all of them.
struct Tried {
  std::string place;
  uint64_t needed;
  std::string has;
};

Error NoRoom(uint64_t bytes, const std::vector<Tried>& tried) {
  std::string text;
  for (const Tried& one : tried) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} in {} ({} needed)", one.has, one.place, one.needed);
  }
  Error error{Code::kResourceExhausted};
  error.message = fmt::format(
      "no folder has space for the {} bytes of CPU memory that CRIU reads from files. A folder in "
      "memory needs more space, because the restored program needs its memory too. Free bytes: {}",
      bytes, text);
  error.hint = "end a program that uses a lot of memory, or free space on one of these disks";
  return error;
}

// Returns a folder with space for `bytes`. A folder in memory must have space for `in_memory`,
// because the restored program needs its memory too.
Result<std::string> PlaceFor(const Paths& paths, const std::string& store, uint64_t bytes,
                             uint64_t in_memory, bool ignore_memory) {
  std::vector<Tried> tried;
  if (auto places = dataplane::OpenPlaces(paths, {})) {
    for (const auto& place : *places) {
      if (!place.in_memory()) continue;
      auto room = dataplane::RoomIn(place, ignore_memory);
      if (room && *room >= in_memory) return place.path;
      tried.push_back({place.path, in_memory, room ? fmt::to_string(*room) : "an unknown number"});
    }
  }
  for (const std::string& disk : {paths.data, store}) {
    if (::access(disk.c_str(), W_OK) != 0) {
      tried.push_back({disk, bytes, "none (not writable)"});
      continue;
    }
    auto free = FreeBytes(disk);
    if (free && *free >= bytes) return disk;
    tried.push_back({disk, bytes, free ? fmt::to_string(*free) : "an unknown number"});
  }
  return Fail(NoRoom(bytes, tried));
}

Status CopyFile(const store::OpenedFile& from, int folder_fd, const std::string& name) {
  STASIS_ASSIGN(UniqueFd to, store::OpenBeneath(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL));
  for (uint64_t left = from.size_bytes; left > 0;) {
    const ssize_t n = TEMP_FAILURE_RETRY(::sendfile(to.get(), from.fd.get(), nullptr, left));
    if (n < 0) return FailErrno(errno, "copy " + name);
    if (n == 0) return Fail(Code::kDataLoss, name + " was truncated while it was copied");
    left -= static_cast<uint64_t>(n);
  }
  return {};
}

Status WriteNew(const std::string& bytes, int folder_fd, const std::string& name) {
  STASIS_ASSIGN(UniqueFd to, store::OpenBeneath(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL));
  return Annotate(WriteAll(to.get(), bytes), "write " + name);
}

}  // namespace

bool NeedsCpuFiles(const store::Manifest& manifest) { return !manifest.page_files.empty(); }

Result<CpuFiles> MakeCpuFiles(const store::ImageReader& image, const Paths& paths,
                              const process::ProcessId& owner, const CpuFilesOptions& options,
                              const Progress& progress) {
  constexpr std::string_view kCpu = "cpu/";
  const store::Manifest& manifest = image.manifest();
  const std::string store = PathOf(image).parent_path();
  const std::string name = PathOf(image).filename().string().substr(0, store::kMaxImageNameBytes);
  Sweep(store);
  CpuFiles made;
  if (options.direct) {
    STASIS_ASSIGN(made.direct, DirectPages::Choose(image));
  }
  const auto& page_files = made.direct ? made.direct->files() : manifest.page_files;
  const uint64_t in_files = PageBytes(page_files);
  STASIS_ASSIGN(const UniqueFd hold, dataplane::HoldPlaces(paths));
  STASIS_ASSIGN(std::string place,
                PlaceFor(paths, store, in_files, in_files + PageBytes(manifest.page_files),
                         options.ignore_memory));
  auto note = [&](const std::string& folder) -> Status {
    const std::string link = LinkTo(paths, owner);
    ::unlink(link.c_str());
    if (::symlink(folder.c_str(), link.c_str()) == 0) return {};
    return FailErrno(errno, "record the folder of CPU memory in " + link);
  };
  STASIS_ASSIGN(auto hidden, store::MakeHidden(place, name, store::kCpuFiles, note));
  made.folder = place + "/" + hidden.name;
  made.lock = std::move(hidden.fd);
  for (const auto& file : manifest.files) {
    if (!file.path.starts_with(kCpu)) continue;
    const std::string criu_name = file.path.substr(kCpu.size());
    if (made.direct && made.direct->pagemaps().contains(criu_name)) {
      STASIS_TRY(WriteNew(made.direct->pagemaps().at(criu_name), made.lock.get(), criu_name));
      continue;
    }
    STASIS_ASSIGN(auto opened, image.OpenFile(file.path));
    STASIS_TRY(CopyFile(opened, made.lock.get(), criu_name));
  }
  store::UnitReader::Selection selection;
  selection.page_files = true;
  if (made.direct) selection.files = page_files;
  STASIS_ASSIGN(auto pages, store::UnitReader::Open(image, std::move(selection)));
  STASIS_TRY(
      Annotate(pages.MakeFiles(made.lock.get(), progress), "read CPU memory to " + made.folder));
  return made;
}

Status RemoveCpuFiles(const Paths& paths, const process::ProcessId& owner) {
  // After a reboot the link may be gone. Files in memory are then gone too.
  const std::string link = LinkTo(paths, owner);
  auto folder = ReadLink(link);
  if (!folder) return {};
  STASIS_TRY(RemoveTree(*folder));
  ::unlink(link.c_str());
  return {};
}

void SweepCpuFiles(const Paths& paths) { Sweep(paths.data); }

}  // namespace stasis::checkpoint
