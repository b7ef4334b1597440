#include "containers/archive.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace stasis::containers {
namespace {

using Words = std::vector<std::string>;
using nlohmann::json;

// podman writes this file to the archive before CRIU's files.
constexpr char kSpecificationFile[] = "spec.dump";

// Returns the beginning of a tar command that reads an archive of unknown origin. It extracts only
// the first file of each name, restores neither owner nor mode, and never interprets the archive's
// path as that of a remote host.
Words Tar() {
  return {"tar",
          "--extract",
          "--force-local",
          "--occurrence=1",
          "--no-same-owner",
          "--no-same-permissions"};
}

Result<std::string> ReadSpecification(CommandRunner& runner, const RestoreRequest& request,
                                      const Deadline& deadline) {
  if (request.reference.runtime == Runtime::kPodman) {
    Words command = Tar();
    command.insert(command.end(), {"--to-stdout", "--file", request.archive, kSpecificationFile});
    return RunOk(runner, command, deadline);
  }
  STASIS_ASSIGN(const std::string digest, BlobOfImage(runner, request.reference, request.places,
                                                      kSpecificationBlob, deadline));
  Words command = CommandOf(request.reference, request.places);
  command.insert(command.end(), {"content", "get", digest});
  return RunOk(runner, command, deadline);
}

// Returns the command of a shell that pipes the output of one command to another.
Words Piped(const Words& from, const Words& to) {
  // The shell gets all words as arguments, so it interprets none of them.
  std::string script;
  size_t number = 0;
  for (size_t i = 0; i < from.size(); ++i) script += fmt::format("\"${{{}}}\" ", ++number);
  script += "|";
  for (size_t i = 0; i < to.size(); ++i) script += fmt::format(" \"${{{}}}\"", ++number);
  Words command = {"sh", "-c", script, "sh"};
  command.insert(command.end(), from.begin(), from.end());
  command.insert(command.end(), to.begin(), to.end());
  return command;
}

}  // namespace

Result<std::string> BlobOfImage(CommandRunner& runner, const Reference& image, const Places& places,
                                const std::string& kind, const Deadline& deadline) {
  constexpr std::string_view kDigest = "sha256:";
  auto ctr = [&](const Words& words) {
    Words command = CommandOf(image, places);
    command.insert(command.end(), words.begin(), words.end());
    return RunOk(runner, command, deadline);
  };
  STASIS_ASSIGN(const std::string listed, ctr({"images", "ls", "name==" + image.name}));
  const size_t at = listed.find(kDigest);
  if (at == listed.npos) return Fail(Code::kNotFound, "ctr lists no image " + image.name);
  STASIS_ASSIGN(const std::string text,
                ctr({"content", "get", listed.substr(at, listed.find(' ', at) - at)}));
  const json index = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json* manifests =
      index.is_object() && index.contains("manifests") && index["manifests"].is_array()
          ? &index["manifests"]
          : nullptr;
  if (manifests == nullptr) return std::string();
  for (const json& blob : *manifests) {
    if (!blob.is_object()) continue;
    const auto type = blob.find("mediaType"), digest = blob.find("digest");
    if (type == blob.end() || digest == blob.end()) continue;
    if (!type->is_string() || !digest->is_string()) continue;
    if (type->get<std::string>().find(kind) == std::string::npos) continue;
    if (digest->get<std::string>().starts_with(kDigest)) return digest->get<std::string>();
  }
  return std::string();
}

Result<Words> MountSourcesIn(const std::string& specification) {
  // containerd stores the specification as a protobuf message Any, whose last field is the JSON
  // document.
  const size_t begin = specification.find('{'), end = specification.rfind('}');
  json document;
  if (begin != specification.npos && end != specification.npos && begin < end) {
    document = json::parse(specification.begin() + static_cast<ptrdiff_t>(begin),
                           specification.begin() + static_cast<ptrdiff_t>(end) + 1, nullptr,
                           /*allow_exceptions=*/false);
  }
  if (!document.is_object()) {
    return Fail(Code::kDataLoss, "the specification of the container is damaged");
  }
  Words sources;
  const auto mounts = document.find("mounts");
  if (mounts == document.end() || !mounts->is_array()) return sources;
  for (const json& mount : *mounts) {
    if (!mount.is_object() || !mount.contains("source") || !mount["source"].is_string()) continue;
    auto source = mount["source"].get<std::string>();
    if (source.starts_with('/')) sources.push_back(std::move(source));
  }
  return sources;
}

Result<Words> MountSources(CommandRunner& runner, const RestoreRequest& request,
                           const Deadline& deadline) {
  STASIS_ASSIGN(const std::string specification, ReadSpecification(runner, request, deadline));
  return MountSourcesIn(specification);
}

Status ExtractData(CommandRunner& runner, const RestoreRequest& request, const Words& files,
                   const std::string& folder, const Deadline& deadline) {
  Words command = Tar();
  if (request.reference.runtime == Runtime::kPodman) {
    // The archive has CRIU's files in a folder named kCriuFolder.
    command.insert(command.end(), {"--directory", folder, "--file", request.archive});
    for (const std::string& file : files) {
      command.push_back(fmt::format("{}/stasis/{}", kCriuFolder + 1, file));
    }
  } else {
    STASIS_ASSIGN(const std::string digest,
                  BlobOfImage(runner, request.reference, request.places, kCriuFilesBlob, deadline));
    command.insert(command.end(), {"--directory", folder + kCriuFolder, "--file", "-"});
    for (const std::string& file : files) command.push_back("stasis/" + file);
    Words get = CommandOf(request.reference, request.places);
    get.insert(get.end(), {"content", "get", digest});
    command = Piped(get, command);
  }
  // The exit status is ignored, because tar fails if the checkpoint lacks one of the files.
  STASIS_TRY(runner.Run(command, {deadline, {}}));
  return {};
}

}  // namespace stasis::containers
