#include "containers/inspect.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/install_layout.h"
#include "containers/cdi.h"
#include "containers/criu_config.h"
#include "containers/shared_file.h"
#include "criu/plugin_protocol.h"
#include "process/search.h"

namespace stasis::containers {
namespace {

using Level = Observation::Level;

constexpr char kPluginFolder[] = "/lib/stasis/criu";
constexpr char kSetupFix[] = "`sudo stasis container setup`";
constexpr char kUseRunc[] =
    "install runc, and set `runtime = \"runc\"` below [engine] in "
    "/etc/containers/containers.conf";
// Other configuration files that a CRIU started by a runtime reads; they may set libdir.
constexpr const char* kMoreConfigs[] = {"/etc/criu/runc.conf", "/etc/criu/crun.conf"};

// The parameters of a check.
struct Asked {
  CommandRunner& runner;
  const SetupPaths& paths;
  const Places& places;
  const Deadline& deadline;
};

std::string CriuFix(const SetupPaths& paths) {
  if (paths.bundled_criu.empty()) {
    return "install CRIU 4.1 or newer at /usr/local/sbin/criu";
  }
  return fmt::format("`sudo ln -s {} /usr/local/sbin/criu`", paths.bundled_criu);
}

// Describes the problem with the first CRIU on `path`; returns an empty string if there is none.
// Stores the version and path of that CRIU in `found`, as text.
std::string CriuProblem(const Asked& asked, const std::string& path, std::string& found) {
  const std::string criu = asked.runner.Find("criu", path);
  if (criu.empty()) return "there is no CRIU on its PATH";
  auto output = RunOk(asked.runner, {criu, "--version"}, asked.deadline);
  if (!output) return output.error().ToString();
  const std::string version = FirstVersionText(*output);
  if (version.empty()) return criu + " does not say which version it is";
  found = fmt::format("CRIU {} at {}", version, criu);
  if (FirstVersion(*output) >= kLeastCriu) return {};
  return fmt::format("{} is CRIU {}, and {}.{} is needed", criu, version, kLeastCriu.major,
                     kLeastCriu.minor);
}

Observation Describe(const Asked& asked, const char* id, const std::string& what,
                     const std::string& path = {}) {
  std::string criu;
  const std::string problem = CriuProblem(asked, path, criu);
  if (problem.empty()) return {id, Level::kOk, what + ", " + criu, {}};
  return {id, Level::kCannot, what + ": " + problem, CriuFix(asked.paths)};
}

Observation NotInstalled(Runtime runtime, const char* id) {
  return {id, Level::kCannot, fmt::format("{} is not installed", RuntimeName(runtime)),
          fmt::format("install {}, or put it on PATH", RuntimeName(runtime))};
}

Observation InspectRunc(const Asked& asked) {
  const std::string path = asked.runner.Find("runc");
  if (path.empty()) return NotInstalled(Runtime::kRunc, "runc");
  auto output = RunOk(asked.runner, {path, "--version"}, asked.deadline);
  if (!output) return {"runc", Level::kCannot, output.error().ToString(), {}};
  return Describe(asked, "runc", fmt::format("runc {}", FirstVersionText(*output)));
}

// Checks podman, the runtime that it uses, and their CRIU.
Observation InspectPodman(const Asked& asked) {
  const std::string path = asked.runner.Find("podman");
  if (path.empty()) return NotInstalled(Runtime::kPodman, "podman");
  auto output = RunOk(asked.runner, {path, "info", "--format", "json"}, asked.deadline);
  if (!output) return {"podman", Level::kCannot, output.error().ToString(), {}};
  const auto info = nlohmann::json::parse(*output, nullptr, /*allow_exceptions=*/false);
  auto text = [&](const char* pointer) {
    const nlohmann::json::json_pointer at(pointer);
    return info.is_object() && info.contains(at) && info[at].is_string()
               ? info[at].get<std::string>()
               : std::string();
  };
  const std::string name = text("/host/ociRuntime/name");
  const std::string features = text("/host/ociRuntime/version");
  if (name.empty()) {
    return {"podman", Level::kCannot, "podman does not say which runtime it uses", {}};
  }
  const std::string what = fmt::format("podman {} with {} {}", text("/version/Version"), name,
                                       FirstVersionText(features));
  if (info["host"].value("serviceIsRemote", false)) {
    return {"podman", Level::kWarning, what + " on another machine", {}};
  }
  if (name == "crun" && features.find("+CRIU") == features.npos) {
    return {"podman", Level::kCannot, what + ", which was compiled without CRIU", kUseRunc};
  }
  const std::string rootless = "/host/security/rootless";
  const nlohmann::json::json_pointer at(rootless);
  if (info.contains(at) && info[at].is_boolean() && info[at].get<bool>()) {
    return {"podman", Level::kWarning, what + ", rootless: podman checkpoints only as root",
            "run the container with `sudo podman`"};
  }
  return Describe(asked, "podman", what);
}

// Returns the PATH of containerd's daemon. The daemon's shims search it for CRIU.
std::string PathOfContainerd(const SetupPaths& paths) {
  auto pids = paths.root.empty() ? process::ListProcesses()
                                 : Result<std::vector<process::HostPid>>(Fail(Code::kNotFound, ""));
  if (!pids) return {};
  for (const process::HostPid pid : *pids) {
    const std::string folder = "/proc/" + process::ToString(pid);
    if (ReadFile(folder + "/comm", 64).value_or("") != "containerd\n") continue;
    std::istringstream entries(ReadFile(folder + "/environ", 1u << 20).value_or(""));
    for (std::string entry; std::getline(entries, entry, '\0');) {
      if (entry.starts_with("PATH=")) return entry.substr(5);
    }
  }
  return {};
}

Observation InspectContainerd(const Asked& asked) {
  const std::string path = asked.runner.Find("ctr");
  if (path.empty()) return NotInstalled(Runtime::kContainerd, "containerd");
  const std::string socket = ContainerdSocket(asked.places);
  if (!PathExists(socket)) {
    return {"containerd", Level::kNote,
            fmt::format("ctr is installed, but containerd has no socket at {}", socket),
            "start it, or name its socket with --containerd-address"};
  }
  auto output = RunOk(asked.runner, {path, "--address", socket, "version"}, asked.deadline);
  if (!output) return {"containerd", Level::kCannot, output.error().ToString(), {}};
  const size_t server = output->find("Server:");
  const std::string version = FirstVersionText(output->substr(server == output->npos ? 0 : server));
  return Describe(asked, "containerd", fmt::format("containerd {}", version),
                  PathOfContainerd(asked.paths));
}

// Checks whether CRIU can lock the network of a container.
Observation InspectNetworkLock(const Asked& asked) {
  constexpr char kTool[] = "iptables-restore";
  auto text = ReadSharedFile(asked.paths.criu_config);
  const bool chosen = text && !ReadCriuConfig(*text).network_lock.empty();
  if (chosen || !asked.runner.Find(kTool).empty()) return {};
  return {"container-network", Level::kWarning, fmt::format("{} is not on PATH", kTool),
          fmt::format("install iptables, or add the line `network-lock nftables` to {}",
                      asked.paths.criu_config)};
}

struct Row {
  Runtime runtime;
  const char* program;
  Observation (*inspect)(const Asked&);
};
constexpr Row kRows[] = {{Runtime::kPodman, "podman", InspectPodman},
                         {Runtime::kContainerd, "ctr", InspectContainerd},
                         {Runtime::kRunc, "runc", InspectRunc}};

size_t VersionAt(const std::string& text) {
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    const bool starts = i == 0 || (std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0) ||
                        text[i - 1] == 'v';
    if (!starts || std::isdigit(static_cast<unsigned char>(text[i])) == 0) continue;
    const size_t dot = text.find_first_not_of("0123456789", i);
    if (dot != text.npos && text[dot] == '.' && dot + 1 < text.size() &&
        std::isdigit(static_cast<unsigned char>(text[dot + 1])) != 0) {
      return i;
    }
  }
  return text.npos;
}

Observation InspectConfig(const SetupPaths& paths) {
  auto text = ReadSharedFile(paths.criu_config);
  if (!text) return {"container-criu", Level::kCannot, text.error().ToString(), {}};
  const CriuConfig config = ReadCriuConfig(*text);
  if (config.libdir.empty()) {
    return {"container-criu", Level::kCannot,
            fmt::format("{} has no libdir, so the CRIU of container runtimes does not load the "
                        "plugin of Stasis",
                        paths.criu_config),
            kSetupFix};
  }
  if (config.libdir != paths.plugin_folder) {
    return {"container-criu", Level::kCannot,
            fmt::format("{} says `libdir {}`, but the plugin of this installation is in {}",
                        paths.criu_config, config.libdir, paths.plugin_folder),
            config.libdir_is_ours
                ? kSetupFix
                : "delete that line if nothing needs the plugins in that folder, then run `sudo "
                  "stasis container setup`"};
  }
  for (const char* more : kMoreConfigs) {
    auto other = ReadSharedFile(paths.root + more);
    if (!other) continue;
    const CriuConfig theirs = ReadCriuConfig(*other);
    if (theirs.libdir.empty() || theirs.libdir == paths.plugin_folder) continue;
    return {"container-criu", Level::kCannot,
            fmt::format("{} says `libdir {}`, which overrides the one in {}", more, theirs.libdir,
                        paths.criu_config),
            "delete that line"};
  }
  return {"container-criu",
          Level::kOk,
          fmt::format("{} names the plugin's folder; CRIU's timeout is {} s", paths.criu_config,
                      config.timeout.value_or(10)),
          {}};
}

Observation InspectPlugin(const SetupPaths& paths) {
  const std::string path = paths.plugin_folder + "/" + kPlugin;
  if (PathExists(path)) return {"container-plugin", Level::kOk, path, {}};
  return {"container-plugin", Level::kCannot, path + " is missing", {}};
}

Observation InspectCdi(const SetupPaths& paths) {
  auto library = LibraryOfCdi(paths.cdi_folder);
  if (!library) return {"container-cdi", Level::kWarning, library.error().ToString(), {}};
  if (library->empty()) {
    return {"container-cdi", Level::kNote,
            fmt::format("{} has no specification of {}", paths.cdi_folder, kCdiDevice),
            "`sudo stasis cdi install`"};
  }
  if (!PathExists(*library)) {
    return {
        "container-cdi", Level::kCannot,
        fmt::format("{}/{} names {}, which does not exist", paths.cdi_folder, kCdiFile, *library),
        "`sudo stasis cdi install`"};
  }
  return {"container-cdi", Level::kOk, fmt::format("{} mounts {}", kCdiDevice, *library), {}};
}

// Returns the path of the socket to which the plugin connects.
std::string SocketOfPlugin(const SetupPaths& paths) {
  auto text = ReadFile(paths.plugin_folder + "/stasis_plugin.socket", 4096);
  if (!text || !text->starts_with('/')) return STASIS_CRIU_SOCKET;
  return text->substr(0, text->find('\n'));
}

// Does not connect to the socket, because the daemon would begin an operation.
Observation InspectDaemon(const SetupPaths& paths) {
  const std::string path = SocketOfPlugin(paths);
  std::istringstream sockets(ReadFile(paths.root + "/proc/net/unix").value_or(""));
  bool listens = false;
  for (std::string line; !listens && std::getline(sockets, line);) {
    // The line is "...: 00000002 00000000 00010000 TYPE STATE INODE PATH". The flag 00010000 means
    // that the socket listens.
    listens = line.ends_with(" " + path) && line.find(" 00010000 ") != line.npos;
  }
  if (!listens) {
    return {"container-daemon", Level::kWarning, "no stasisd is listening at " + path,
            "run `systemctl start stasisd` or `sudo stasis daemon start`"};
  }
  struct stat st;
  if (::stat(path.c_str(), &st) == 0 && st.st_uid != 0) {
    return {"container-daemon", Level::kWarning,
            fmt::format("the stasisd at {} belongs to user {}, not to root", path, st.st_uid),
            "`sudo stasis daemon start`"};
  }
  return {"container-daemon", Level::kOk, "stasisd listens at " + path, {}};
}

}  // namespace

std::string FirstVersionText(const std::string& text) {
  const size_t at = VersionAt(text);
  if (at == text.npos) return {};
  size_t end = text.find_first_not_of("0123456789.", at);
  if (end == text.npos) end = text.size();
  while (end > at && text[end - 1] == '.') --end;
  return text.substr(at, end - at);
}

ProgramVersion FirstVersion(const std::string& text) {
  std::istringstream numbers(FirstVersionText(text));
  ProgramVersion version;
  char dot = 0;
  numbers >> version.major >> dot >> version.minor;
  return version;
}

Result<SetupPaths> UsualSetupPaths() {
  STASIS_ASSIGN(const std::string root, InstallRoot());
  SetupPaths paths{kCriuConfig, kCdiFolder, root + kPluginFolder, {}, {}};
  if (auto criu = LibexecProgram("criu")) paths.bundled_criu = *criu;
  return paths;
}

bool IsSetUp(const SetupPaths& paths) {
  auto text = ReadSharedFile(paths.criu_config);
  return text &&
         (ReadCriuConfig(*text).has_ours || ReadCriuConfig(*text).libdir == paths.plugin_folder);
}

std::vector<Observation> InspectSetup(const SetupPaths& paths) {
  return {InspectPlugin(paths), InspectConfig(paths), InspectDaemon(paths), InspectCdi(paths)};
}

bool HasNvidiaHookMounts(const std::string& mountinfo) {
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    // The line is "ID PARENT MAJOR:MINOR ROOT MOUNT-POINT …".
    std::istringstream fields(line);
    std::string field;
    for (int i = 0; i < 5; ++i) fields >> field;
    if (field == "/proc/driver/nvidia") return true;
  }
  return false;
}

std::vector<Observation> InspectRuntimes(CommandRunner& runner, const SetupPaths& paths,
                                         const Places& places, const std::vector<Runtime>& runtimes,
                                         const Deadline& deadline) {
  const Asked asked{runner, paths, places, deadline};
  std::vector<Observation> observations;
  for (const Row& row : kRows) {
    const bool named = std::find(runtimes.begin(), runtimes.end(), row.runtime) != runtimes.end();
    const bool wanted = runtimes.empty() ? !runner.Find(row.program).empty() : named;
    if (wanted) observations.push_back(row.inspect(asked));
  }
  if (observations.empty()) return observations;
  Observation lock = InspectNetworkLock(asked);
  if (lock.level != Level::kOk) observations.push_back(std::move(lock));
  return observations;
}

}  // namespace stasis::containers
