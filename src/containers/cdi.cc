#include "containers/cdi.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "containers/shared_file.h"

namespace stasis::containers {
namespace {

using nlohmann::json;

// Devices can have mounts and environment variables in this version, which older runtimes support.
constexpr char kCdiVersion[] = "0.3.0";
constexpr char kFolderInContainer[] = "/usr/lib/stasis/agents/";

json ParseSpecification(const std::string& text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool IsOurs(const std::string& text) {
  const json object = ParseSpecification(text);
  return object.is_object() && object.contains("kind") && object["kind"] == kCdiKind;
}

// A specification may be YAML. Instead of parsing YAML, this looks for the line with the kind.
bool DeclaresKind(const std::string& text) {
  size_t at = text.find(kCdiKind);
  if (at == text.npos) return false;
  const size_t line = text.rfind('\n', at) == text.npos ? 0 : text.rfind('\n', at) + 1;
  const std::string before = text.substr(line, at - line);
  return before.find("kind") != before.npos && before.find('#') == before.npos;
}

// CDI refuses a device that two specifications declare.
Status CheckNoOther(const std::string& folder) {
  const auto names = ListDir(folder);
  if (!names) return {};  // the folder does not exist yet
  for (const std::string& name : *names) {
    const std::string suffix = std::filesystem::path(name).extension();
    if (name == kCdiFile || (suffix != ".json" && suffix != ".yaml" && suffix != ".yml")) continue;
    const std::string path = folder + "/" + name;
    auto text = ReadSharedFile(path);
    if (!text || !DeclaresKind(*text)) continue;
    return Fail(Code::kFailedPrecondition, path + " declares devices of " + kCdiKind + " already",
                "remove that file: runtimes refuse a device that two files declare");
  }
  return {};
}

}  // namespace

std::string LibraryInContainer(const std::string& library) {
  const std::filesystem::path path(library);
  return kFolderInContainer + path.parent_path().filename().string() + "/" +
         path.filename().string();
}

std::string CdiSpecification(const std::string& library) {
  const std::filesystem::path inside = LibraryInContainer(library);
  // The members have the same order as in the examples of the CDI specification.
  nlohmann::ordered_json mount = {
      {"hostPath", std::filesystem::path(library).parent_path().string()},
      {"containerPath", inside.parent_path().string()},
      {"options", {"ro", "nosuid", "nodev", "bind"}}};
  nlohmann::ordered_json device = {
      {"name", "on"},
      {"containerEdits",
       {{"env", {"LD_PRELOAD=" + inside.string()}},
        {"mounts", nlohmann::ordered_json::array({std::move(mount)})}}}};
  const nlohmann::ordered_json document = {
      {"cdiVersion", kCdiVersion},
      {"kind", kCdiKind},
      {"devices", nlohmann::ordered_json::array({std::move(device)})}};
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<CdiInstalled> InstallCdi(const std::string& folder, const std::string& library) {
  const std::string path = folder + "/" + kCdiFile;
  STASIS_ASSIGN(const std::string before, ReadSharedFile(path));
  if (!before.empty() && !IsOurs(before)) {
    return Fail(Code::kFailedPrecondition, path + " is not a specification of " + kCdiKind,
                "move it away: Stasis overwrites only a file of its own");
  }
  STASIS_TRY(CheckNoOther(folder));
  const std::string wanted = CdiSpecification(library);
  if (before == wanted) return CdiInstalled{path, false};
  STASIS_TRY(WriteSharedFile(path, wanted));
  return CdiInstalled{path, true};
}

Result<bool> RemoveCdi(const std::string& folder) {
  const std::string path = folder + "/" + kCdiFile;
  STASIS_ASSIGN(const std::string before, ReadSharedFile(path));
  if (before.empty() || !IsOurs(before)) return false;
  STASIS_TRY(RemoveSharedFile(path));
  return true;
}

Result<std::string> LibraryOfCdi(const std::string& folder) {
  STASIS_ASSIGN(const std::string text, ReadSharedFile(folder + "/" + kCdiFile));
  if (!IsOurs(text)) return std::string();
  const json object = ParseSpecification(text);
  const auto host = json::json_pointer("/devices/0/containerEdits/mounts/0/hostPath");
  const auto preload = json::json_pointer("/devices/0/containerEdits/env/0");
  if (!object.contains(host) || !object[host].is_string() || !object.contains(preload) ||
      !object[preload].is_string()) {
    return std::string();
  }
  const std::filesystem::path inside = object[preload].get<std::string>();
  return object[host].get<std::string>() + "/" + inside.filename().string();
}

}  // namespace stasis::containers
