#include "slurm_setup/plugins.h"

#include <algorithm>

#include "base/file.h"

namespace stasis::slurm_setup {
namespace {

constexpr size_t kMaxPlugin = 4u << 20;

}  // namespace

std::string DefaultPlugin(const std::string& root) { return root + "/lib/stasis/slurm/stasis.so"; }

std::vector<InstalledPlugin> FindPlugins(const std::string& root) {
  const std::string folder = root + "/lib/stasis";
  auto names = ListDir(folder);
  if (!names) return {};
  std::sort(names->begin(), names->end());  // "slurm" comes before "slurm-24.11"
  std::vector<InstalledPlugin> plugins;
  for (const std::string& name : *names) {
    if (name != "slurm" && !name.starts_with("slurm-")) continue;
    std::string path = folder + "/" + name + "/stasis.so";
    const auto file = ReadFile(path, kMaxPlugin);
    const auto release = file ? FindRelease(*file) : std::nullopt;
    if (release) plugins.push_back({std::move(path), *release});
  }
  return plugins;
}

const InstalledPlugin* PluginFor(const std::vector<InstalledPlugin>& plugins,
                                 const std::optional<Release>& release) {
  const auto found = std::find_if(plugins.begin(), plugins.end(), [&](const InstalledPlugin& one) {
    return release && one.release == *release;
  });
  return found == plugins.end() ? nullptr : &*found;
}

std::string ReleasesOf(const std::vector<InstalledPlugin>& plugins) {
  std::string text;
  for (size_t i = 0; i < plugins.size(); ++i) {
    if (i > 0) text += i + 1 == plugins.size() ? " and " : ", ";
    text += ToString(plugins[i].release);
  }
  return text.empty() ? "no release" : text;
}

}  // namespace stasis::slurm_setup
