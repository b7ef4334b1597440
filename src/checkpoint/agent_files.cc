#include "checkpoint/agent_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/hex.h"
#include "jobs/agent_library.h"

namespace stasis::checkpoint {
namespace {

bool IsAgentLibrary(const store::RequiredFile& file) {
  return !file.build_id.empty() &&
         std::filesystem::path(file.path).filename() == jobs::kAgentLibraryName;
}

std::string PathInImage(const store::RequiredFile& file) {
  return fmt::format("{}/{}.so", store::kAgentFolder, HexOfBytes(file.build_id));
}

// Returns the path of a library with the build id of `file`, or an empty string. Prefers the
// library of this installation to that of the image: a build id can be forged, and programs that
// are started later load the restored file too.
std::string SourceOf(const store::ImageReader& reader, const store::RequiredFile& file,
                     AgentSource source) {
  auto own = jobs::OwnAgentLibrary();
  if (own && own->build_id == HexOfBytes(file.build_id)) return own->path;
  if (source != AgentSource::kImageToo) return {};
  const auto& files = reader.manifest().files;
  std::string wanted = PathInImage(file);
  if (std::any_of(files.begin(), files.end(), [&](const auto& f) { return f.path == wanted; })) {
    return reader.path() + "/" + wanted;
  }
  return {};
}

Status PutBack(const store::ImageReader& reader, const store::RequiredFile& file,
               AgentSource source) {
  const std::string build_id = HexOfBytes(file.build_id);
  const std::string path = SourceOf(reader, file, source), inside = PathInImage(file);
  if (path != reader.path() + "/" + inside) {
    return jobs::RestoreAgentLibrary(file.path, build_id, path);
  }
  // Read the library through the open folder of the verified image, because another image may now
  // be at its path.
  STASIS_ASSIGN(auto opened, reader.OpenFile(inside));
  return jobs::RestoreAgentLibrary(file.path, build_id,
                                   fmt::format("/proc/self/fd/{}", opened.fd.get()));
}

}  // namespace

AgentSource AgentSourceFor(const store::ImageReader& reader, const Paths& paths, bool trusted) {
  if (trusted) return AgentSource::kImageToo;
  auto key = store::FindOriginKey(paths);
  const bool own = key && *key && reader.OriginBy(&**key) == store::Origin::kOwn;
  return own ? AgentSource::kImageToo : AgentSource::kThisInstallation;
}

Status StoreAgentLibraries(store::ImageWriter& writer, const store::Manifest& manifest) {
  std::vector<std::string> stored;
  for (const auto& file : manifest.required_files) {
    std::string path = PathInImage(file);
    bool is_stored = std::find(stored.begin(), stored.end(), path) != stored.end();
    if (!IsAgentLibrary(file) || is_stored) continue;
    STASIS_ASSIGN(std::string content, ReadFile(file.path, jobs::kMaxAgentLibraryBytes));
    STASIS_ASSIGN(UniqueFd fd, writer.AddFile(path));
    STASIS_TRY(Annotate(WriteAll(fd.get(), content), "store " + file.path));
    stored.push_back(std::move(path));
  }
  return {};
}

bool CanPutBack(const store::ImageReader& reader, const store::RequiredFile& file,
                AgentSource source) {
  return jobs::IsInstalledPlace(file.path, HexOfBytes(file.build_id)) &&
         !SourceOf(reader, file, source).empty();
}

std::string PutBackHint(const store::ImageReader& reader, const store::RequiredFile& file) {
  if (!IsAgentLibrary(file)) return {};
  std::string source = SourceOf(reader, file, AgentSource::kImageToo);
  if (!source.empty()) return fmt::format("restore it: cp {} {}", source, file.path);
  return fmt::format(
      "this is the agent library of build {}: install the Stasis of this build there",
      HexOfBytes(file.build_id));
}

Status PutBackAgentLibraries(const store::ImageReader& reader, AgentSource source) {
  for (const auto& file : reader.manifest().required_files) {
    // CanPutBack comes first and rejects all paths outside of the agents' folders, where PathExists
    // may hang (for example on a dead mount).
    if (!CanPutBack(reader, file, source) || PathExists(file.path)) continue;
    STASIS_TRY(PutBack(reader, file, source));
  }
  return {};
}

std::string AgentOf(const store::Manifest& manifest) {
  for (const auto& file : manifest.required_files) {
    if (IsAgentLibrary(file)) return file.path;
  }
  return {};
}

}  // namespace stasis::checkpoint
