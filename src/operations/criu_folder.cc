#include "operations/criu_folder.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/agent_files.h"
#include "criu/plugin_protocol.h"
#include "store/image_reader.h"
#include "store/image_reference.h"

namespace stasis::operations {
namespace {

constexpr char kInventoryCopy[] = "cpu/inventory.img";  // in the image of the GPU data

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
      fmt::format("CRIU's files in {} and the GPU data in {} are not of the same dump: {} "
                  "is not the file that {} is a copy of",
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

Status PutBackAgent(const std::string& images, const Paths& paths) {
  const std::string folder = images + "/" STASIS_CRIU_FOLDER;
  if (!PathExists(folder)) return {};
  STASIS_ASSIGN(const std::string data, store::FollowReference(folder, paths.images()));
  STASIS_ASSIGN(const auto reader, store::ImageReader::Open(data));
  STASIS_ASSIGN(const auto report, reader->Verify(store::VerifyLevel::kAllButUnits));
  STASIS_TRY(report.ToStatus(data));
  return checkpoint::PutBackAgentLibraries(
      *reader, checkpoint::AgentSourceFor(*reader, paths, /*trusted=*/false));
}

}  // namespace stasis::operations
