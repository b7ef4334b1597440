#include "slurm_setup/site.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "base/subprocess.h"
#include "process/search.h"

namespace stasis::slurm_setup {
namespace {

constexpr size_t kMaxFile = 4u << 20;
constexpr size_t kMaxOutput = 4u << 20;
constexpr int kMaxIncludes = 8;  // files in files
constexpr std::chrono::seconds kPatience{20};

// File systems that only one node can see: tmpfs, overlayfs, ext4, XFS, Btrfs, F2FS, ZFS.
constexpr std::array<uint32_t, 7> kLocalFileSystems = {
    0x01021994, 0x794c7630, 0xef53, 0x58465342, 0x9123683e, 0xf2f52010, 0x2fc12fc1};

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

// Adds the plugins of a file and of those that it includes.
Status ReadPlugStack(const std::string& path, int depth, std::vector<PluginLine>& plugins) {
  STASIS_ASSIGN(const std::string text, ReadFile(path, kMaxFile));
  PlugStack stack = ParsePlugStack(text);
  std::move(stack.plugins.begin(), stack.plugins.end(), std::back_inserter(plugins));
  if (depth == kMaxIncludes) return {};
  for (const std::string& include : stack.includes) {
    const std::string pattern = include[0] == '/' ? include : FolderOf(path) + "/" + include;
    glob_t found{};
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc; ++i) {
        (void)ReadPlugStack(found.gl_pathv[i], depth + 1, plugins);
      }
    }
    ::globfree(&found);
  }
  return {};
}

// Returns the path of a plugin, which may be relative to a folder of PluginDir.
std::string LocatePlugin(const std::string& path, const std::string& folders) {
  if (path.starts_with('/')) return path;
  for (size_t at = 0; at < folders.size();) {
    const size_t end = std::min(folders.find(':', at), folders.size());
    std::string there = folders.substr(at, end - at) + "/" + path;
    if (PathExists(there)) return there;
    at = end + 1;
  }
  return path;
}

void ReadPlugin(const SiteOptions& options, Site& site) {
  site.plugstack = site.config.Get("plugstackconfig");
  if (site.plugstack.empty()) {
    site.plugstack = FolderOf(site.config.Get("slurm_conf")) + "/plugstack.conf";
  }
  std::vector<PluginLine> plugins;
  if (Status read = ReadPlugStack(site.plugstack, 0, plugins); !read) {
    site.plugstack_problem = read.error().ToString();
    return;
  }
  for (PluginLine& plugin : plugins) {
    if (("/" + plugin.path).ends_with("/stasis.so")) site.plugin = std::move(plugin);
  }
  if (!site.plugin) return;
  site.plugin_path = LocatePlugin(site.plugin->path, site.config.Get("plugindir"));
  if (const auto file = ReadFile(site.plugin_path, kMaxFile)) {
    site.plugin_exists = true;
    site.compiled_for = FindRelease(*file);
  }
  site.launcher = site.plugin->Argument("launcher");
  if (site.launcher.empty()) {
    // As the plugin does: ROOT/lib/stasis/slurm/stasis.so, ROOT/libexec/stasis-step.
    std::string root = site.plugin_path;
    for (int i = 0; i < 4; ++i) root = FolderOf(root);
    site.launcher = (root.empty() ? options.root : root) + "/libexec/stasis-step";
  }
  site.launcher_works = ::access(site.launcher.c_str(), X_OK) == 0;
}

Folder ReadFolder(const std::string& path) {
  Folder folder{path, {}, false, 0};
  const std::string existing = ExistingPart(path);
  if (::access(existing.c_str(), W_OK | X_OK) != 0) {
    folder.problem = fmt::format("{}: {}", existing, std::strerror(errno));
  }
  folder.free_bytes = FreeBytes(existing).value_or(0);
  struct statfs info {};
  if (::statfs(existing.c_str(), &info) == 0) {
    const auto type = static_cast<uint32_t>(info.f_type);
    folder.is_local = std::find(kLocalFileSystems.begin(), kLocalFileSystems.end(), type) !=
                      kLocalFileSystems.end();
  }
  return folder;
}

// Returns the capabilities in the bounding set of slurmd.
std::optional<uint64_t> RightsOfSlurmd(const std::string& proc) {
  const auto processes = process::ListProcesses();
  if (!processes) return std::nullopt;
  for (const process::HostPid pid : *processes) {
    const auto stat = process::ReadStat(pid);
    // Debian's slurmd is a link to slurmd-wlm, whose name it has after `scontrol reconfigure`
    // (23.11).
    if (!stat || (stat->comm != "slurmd" && !stat->comm.starts_with("slurmd-"))) continue;
    const auto status = ReadFile(fmt::format("{}/{}/status", proc, pid.value), kMaxFile);
    if (!status) continue;
    constexpr std::string_view kName = "\nCapBnd:\t";
    const size_t at = status->find(kName);
    if (at == std::string::npos) continue;
    uint64_t rights = 0;
    const char* begin = status->data() + at + kName.size();
    if (std::from_chars(begin, status->data() + status->size(), rights, 16).ec == std::errc()) {
      return rights;
    }
  }
  return std::nullopt;
}

// Looks at a list of programs. Returns no value if one cannot be read and no other one calls it.
std::optional<bool> DoesEpilogCall(const std::string& paths) {
  std::optional<bool> calls = false;
  std::istringstream list(paths);
  for (std::string path; std::getline(list, path, ',');) {
    const auto text = ReadFile(path, kMaxFile);
    if (!text) {
      calls.reset();
    } else if (text->find("slurm epilog") != std::string::npos) {
      return true;
    }
  }
  return calls;
}

}  // namespace

int64_t Site::nodes() const {
  int64_t most = 0;
  for (const Values& partition : partitions) {
    most = std::max(most, partition.Number("totalnodes").value_or(0));
  }
  return most;
}

Result<std::string> RunBounded(const std::vector<std::string>& argv) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd read(ends[0]), write(ends[1]);
  SpawnOptions spawn;
  spawn.argv = argv;
  // Its errors go the same way: they name the reason.
  spawn.fds = {{1, write.get()}, {2, write.get()}};
  spawn.die_with_parent = true;
  STASIS_ASSIGN(Subprocess child, Subprocess::Spawn(spawn));
  write.Reset();
  const Deadline deadline = Deadline::In(kPatience);
  std::string text;
  char buffer[16384];
  for (;;) {
    pollfd ready{read.get(), POLLIN, 0};
    const int polled = ::poll(&ready, 1, deadline.PollTimeout());
    if (polled < 0 && errno == EINTR) continue;
    const ssize_t got = polled > 0 ? ::read(read.get(), buffer, sizeof buffer) : 0;
    if (polled <= 0 || got <= 0 || text.size() > kMaxOutput) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  auto status = child.Wait(deadline);
  if (!status) {
    child.Kill(SIGKILL);
    (void)child.Wait();
    return Fail(Code::kDeadlineExceeded,
                fmt::format("{} did not end in {} s", argv[0], kPatience.count()));
  }
  if (*status != 0) {
    while (text.ends_with('\n')) text.pop_back();
    return Fail(Code::kFailedPrecondition,
                fmt::format("{} {}: {}", argv[0], DescribeWaitStatus(*status), text));
  }
  return text;
}

Site ReadSite(const SiteOptions& options, const RunCommand& run) {
  Site site;
  site.is_root = ::geteuid() == 0;
  site.hides_gpus = options.hides_gpus;
  site.images = ReadFolder(options.paths.images());
  site.run = ReadFolder(options.paths.run);
  site.slurmd_rights = RightsOfSlurmd(options.proc);
  if (const auto last = ReadFile(options.proc + "/sys/kernel/cap_last_cap", kMaxFile)) {
    (void)std::from_chars(last->data(), last->data() + last->size(), site.last_capability);
  }
  const auto config = run({"scontrol", "show", "config"});
  if (!config) {
    site.problem = config.error().ToString();
    return site;
  }
  site.config = Values::OfConfig(*config);
  if (const auto partitions = run({"scontrol", "--oneliner", "show", "partition"})) {
    for (const std::string_view line : LinesOf(*partitions)) {
      site.partitions.push_back(Values::OfWords(line));
    }
  }
  ReadPlugin(options, site);
  site.plugins = FindPlugins(options.root);
  if (const std::string epilog = site.config.Get("epilog"); !epilog.empty()) {
    site.epilog_calls = DoesEpilogCall(epilog);
  }
  return site;
}

}  // namespace stasis::slurm_setup
