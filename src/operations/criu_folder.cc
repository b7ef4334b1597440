#include "operations/criu_folder.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/agent_files.h"
#include "criu/plugin_protocol.h"
#include "store/file_check.h"
#include "store/image_reader.h"
#include "store/image_reference.h"
#include "store/limits.h"

namespace stasis::operations {
namespace {

constexpr char kInventoryCopy[] = "cpu/inventory.img";  // in the image of the GPU data

// Checks the contents of the agents' libraries that exist in the image. The restore checks all
// other files.
Status CheckLibraries(const store::ImageReader& reader) {
  const store::Manifest& manifest = reader.manifest();
  for (const store::File& file : manifest.files) {
    if (!file.path.starts_with(std::string(store::kAgentFolder) + "/")) continue;
    if (!reader.OpenFile(file.path)) continue;
    std::vector<store::ChecksumJob> jobs = {{{file.path, file.size_bytes, {}}, {}}};
    STASIS_TRY(store::ComputeChecksums(reader.dir_fd(), manifest.chunk_bytes, jobs,
                                       store::Writeback::kNone, nullptr));
    if (jobs[0].error) return Fail(*jobs[0].error);
    if (jobs[0].file.checksums == file.checksums) continue;
    return Fail(
        Code::kDataLoss, Domain::kImage, 0,
        fmt::format("image {} is damaged: {} has a different checksum", reader.path(), file.path));
  }
  return {};
}

}  // namespace

Result<std::string> PathOfFolder(int folder) {
  STASIS_ASSIGN(std::string path, ReadLink(fmt::format("/proc/self/fd/{}", folder)));
  struct stat by_fd, by_path;
  if (::fstat(folder, &by_fd) != 0) return FailErrno(errno, "stat CRIU's image folder");
  if (::stat(path.c_str(), &by_path) == 0 && FileId::Of(by_fd) == FileId::Of(by_path)) return path;
  return Fail(Code::kUnimplemented,
              fmt::format("stasisd does not have CRIU's image folder {}: it is in another mount "
                          "namespace",
                          path));
}

Status CheckSameDump(const std::string& images, const std::string& data) {
  auto criu = ReadFile(images + "/" + kInventory, kMaxInventoryBytes);
  auto copy = ReadFile(data + "/" + kInventoryCopy, kMaxInventoryBytes);
  if (criu && copy && *criu == *copy) return {};
  return Fail(
      Code::kDataLoss,
      fmt::format("CRIU's files in {} and the GPU data in {} are from different dumps: {} and its "
                  "copy {} differ",
                  images, data, kInventory, kInventoryCopy),
      "restore from a folder that a single dump wrote, and whose files were copied together");
}

void RemoveCgroupYard(const std::string& images) {
  auto names = ListDir(images);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(".criu.cgyard.")) continue;
    const std::string path = images + "/" + name;
    (void)::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    (void)::rmdir(path.c_str());
  }
}

Status PutBackAgent(const std::string& images, const Paths& paths, bool trusted) {
  const std::string folder = images + "/" STASIS_CRIU_FOLDER;
  if (!PathExists(folder)) return {};
  STASIS_ASSIGN(const std::string data, store::FollowReference(folder, paths.images()));
  STASIS_ASSIGN(const auto reader, store::ImageReader::Open(data));
  STASIS_TRY(CheckLibraries(*reader));
  return checkpoint::PutBackAgentLibraries(*reader,
                                           checkpoint::AgentSourceFor(*reader, paths, trusted));
}

}  // namespace stasis::operations
