#include "criu/amd_plugin.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <string_view>

#include "base/file.h"
#include "criu/diagnose.h"

namespace stasis::criu {
namespace {

constexpr std::string_view kPrefix = "amdgpu_plugin: ";

bool Has(std::string_view line, std::string_view text) {
  return line.find(text) != std::string_view::npos;
}

// A node of the topology that cannot be read is a GPU that a control group hides. The plugin skips
// it, but logs an error.
bool IsHiddenGpu(std::string_view line) {
  return Has(line, "Failed to access ") && Has(line, "/gpu_id: ");
}

// After these errors a restore succeeds. After others CRIU fails, or tries something else.
bool IsLostByRestore(std::string_view line) {
  constexpr std::array kTexts = {"restore late ioctl failed", "failed to open kfd in plugin"};
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](const char* text) { return Has(line, text); });
}

// Returns the error of the first line of the plugin that `counts` accepts.
Status FindError(const std::string& log_path, const char* what,
                 const std::function<bool(std::string_view)>& counts) {
  std::ifstream log(log_path);
  std::string line;
  while (std::getline(log, line)) {
    if (Has(line, "Error (") && Has(line, kPrefix) && counts(line)) {
      return Fail(Diagnose(line, what, 0));
    }
  }
  if (log.eof()) return {};
  return Fail(Code::kInternal, fmt::format("{}: its log {} cannot be read", what, log_path));
}

}  // namespace

Status CheckPluginDump(const std::string& images_dir, const std::string& log_path,
                       size_t processes) {
  STASIS_TRY(FindError(log_path, "CRIU could not dump the tree",
                       [](std::string_view line) { return !IsHiddenGpu(line); }));
  STASIS_ASSIGN(const auto names, ListDir(images_dir));
  const auto saved =
      static_cast<size_t>(std::count_if(names.begin(), names.end(), [](const auto& name) {
        return name.starts_with("amdgpu-kfd-");
      }));
  if (saved >= processes) return {};
  return Fail(Code::kInternal,
              fmt::format("CRIU's plugin for AMD GPUs saved the GPU state of {} of {} processes",
                          saved, processes));
}

Status CheckPluginRestore(const std::string& log_path) {
  return FindError(log_path, "CRIU could not restore the tree", IsLostByRestore);
}

}  // namespace stasis::criu
