#include "api/put_back_agent.h"

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "api/target.h"
#include "base/file.h"
#include "containers/archive.h"
#include "jobs/agent_library.h"
#include "operations/criu_folder.h"
#include "store/image_reference.h"
#include "store/limits.h"

namespace stasis::api {
namespace {

using containers::Runtime;

// Puts back the missing libraries that this installation has. Returns the build ids of the other
// missing libraries.
Result<std::vector<std::string>> PutBackOwn(const std::vector<std::string>& mount_sources) {
  std::vector<std::string> missing;
  const auto own = jobs::OwnAgentLibrary();
  for (const std::string& folder : mount_sources) {
    const std::string build_id = std::filesystem::path(folder).filename();
    const std::string library = folder + "/" + jobs::kAgentLibraryName;
    if (!jobs::IsInstalledPlace(library, build_id) || PathExists(library)) continue;
    if (!own || own->build_id != build_id) {
      missing.push_back(build_id);
      continue;
    }
    STASIS_TRY(jobs::RestoreAgentLibrary(library, build_id, own->path));
  }
  return missing;
}

// Extracts the parts of the GPU data that name and contain the libraries.
Status PutBackFromCheckpoint(const Paths& paths, containers::CommandRunner& runner,
                             const containers::RestoreRequest& restore, bool trusted,
                             const std::vector<std::string>& build_ids, const Deadline& deadline) {
  std::vector<std::string> files = {store::kManifestName, store::kReferenceName};
  for (const std::string& id : build_ids) {
    files.push_back(std::string(store::kAgentFolder) + "/" + id + ".so");
  }
  STASIS_TRY(MakeDirs(paths.run));
  std::string folder = paths.run + "/agent-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return FailErrno(errno, "create " + folder);
  const std::string images = folder + containers::kCriuFolder;
  Status done = MakeDirs(images);
  if (done) done = containers::ExtractData(runner, restore, files, folder, deadline);
  if (done) done = operations::PutBackAgent(images, paths, trusted);
  (void)RemoveTree(folder);
  return done;
}

}  // namespace

Status PutBackAgent(const Paths& paths, containers::CommandRunner& runner,
                    const containers::RestoreRequest& restore, bool trusted,
                    const Deadline& deadline) {
  const bool podman = restore.reference.runtime == Runtime::kPodman;
  if (restore.reference.runtime == Runtime::kRunc) {
    return operations::PutBackAgent(restore.runc_image + containers::kCriuFolder, paths, trusted);
  }
  if (podman && restore.archive.empty()) {
    STASIS_ASSIGN(const auto container,
                  containers::FindContainer(runner, restore.reference, restore.places,
                                            Deadline::In(kRuntimeTimeout)));
    if (container.folder.empty()) return {};
    return operations::PutBackAgent(container.folder + containers::kCriuFolder, paths, trusted);
  }
  // Ignore a checkpoint that cannot be read, because the runtime reports it.
  const auto sources = containers::MountSources(runner, restore, deadline);
  if (!sources) return {};
  STASIS_ASSIGN(const auto missing, PutBackOwn(*sources));
  if (missing.empty()) return {};
  return PutBackFromCheckpoint(paths, runner, restore, trusted, missing, deadline);
}

}  // namespace stasis::api
