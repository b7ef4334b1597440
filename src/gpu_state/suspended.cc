#include "gpu_state/suspended.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace stasis::gpu_state {
namespace {

using nlohmann::json;

constexpr const char* kSuffix = ".json";

std::string Folder(const Paths& paths) { return paths.run + "/suspended"; }

std::string FileOf(const Paths& paths, const process::ProcessId& id) {
  return fmt::format("{}/{}-{}{}", Folder(paths), id.pid.value, id.start_time, kSuffix);
}

std::optional<SuspendedProcess> Parse(const std::string& text) {
  json j = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!j.is_object()) return std::nullopt;
  try {
    SuspendedProcess p;
    p.id = {{j.at("pid").get<pid_t>()}, j.at("start_time").get<uint64_t>()};
    for (const auto& uuid : j.at("gpus")) p.gpus.push_back({uuid.get<std::string>()});
    p.device_bytes = j.at("device_bytes").get<uint64_t>();
    p.since_unix_s = j.at("since_unix_s").get<int64_t>();
    p.pid_namespace = j.value("pid_namespace", uint64_t{0});
    p.boot_id = j.value("boot_id", std::string());
    for (const auto& pair : j.value("moved", json::array())) {
      p.moved.push_back({{pair.at(0).get<std::string>()}, {pair.at(1).get<std::string>()}});
    }
    p.context_kept = j.value("context_kept", false);
    p.driver = j.value("driver", std::string());
    for (const auto& uuid : j.value("visible", json::array())) {
      p.visible.push_back({uuid.get<std::string>()});
    }
    return p;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

bool IsOurs(const SuspendedProcess& process) {
  // All machines give their first pid namespace the same number.
  auto boot_id = process::BootId();
  if (!process.boot_id.empty() && (!boot_id || process.boot_id != *boot_id)) return false;
  auto ours = process::ReadNamespace({::getpid()}, "pid");
  return process.pid_namespace == 0 || (ours && process.pid_namespace == *ours);
}

}  // namespace

Status SaveSuspended(const Paths& paths, const SuspendedProcess& process) {
  STASIS_TRY(MakeDirs(Folder(paths)));
  STASIS_ASSIGN(uint64_t pid_namespace, process::ReadNamespace({::getpid()}, "pid"));
  STASIS_ASSIGN(const std::string boot_id, process::BootId());
  json gpus = json::array();
  for (const auto& uuid : process.gpus) gpus.push_back(uuid.value);
  json visible = json::array();
  for (const auto& uuid : process.visible) visible.push_back(uuid.value);
  json moved = json::array();
  for (const auto& [from, to] : process.moved) moved.push_back({from.value, to.value});
  json j = {{"version", 1},
            {"pid", process.id.pid.value},
            {"start_time", process.id.start_time},
            {"pid_namespace", pid_namespace},
            {"boot_id", boot_id},
            {"gpus", gpus},
            {"device_bytes", process.device_bytes},
            {"since_unix_s", process.since_unix_s},
            {"moved", moved},
            {"context_kept", process.context_kept},
            {"driver", process.driver},
            {"visible", visible}};
  // The file is not synced: a power failure that loses the record ends the process too.
  return ReplaceFile(FileOf(paths, process.id), j.dump() + "\n");
}

std::optional<SuspendedProcess> LoadSuspended(const Paths& paths, const process::ProcessId& id) {
  auto text = ReadFile(FileOf(paths, id), 1 << 20);
  auto parsed = text ? Parse(*text) : std::nullopt;
  return parsed && IsOurs(*parsed) ? parsed : std::nullopt;
}

Status ForgetSuspended(const Paths& paths, const process::ProcessId& id) {
  return RemoveFile(FileOf(paths, id));
}

Status RecordMove(const Paths& paths, const process::ProcessId& id, const device::GpuMap& map) {
  auto record = LoadSuspended(paths, id);
  if (!record && map.empty()) return {};
  if (!record) record = SuspendedProcess{id};
  if (record->moved == map) return {};
  record->moved = map;
  return SaveSuspended(paths, *record);
}

device::GpuMap MapForDriver(const Paths& paths, const process::ProcessId& id,
                            const device::GpuMap& map) {
  auto record = LoadSuspended(paths, id);
  if (!record || record->moved.empty()) return map;
  device::GpuMap from_there;
  bool stays = true;
  for (const auto& [old, at] : record->moved) {
    auto wanted = std::find_if(map.begin(), map.end(),
                               [&old = old](const auto& p) { return p.first == old; });
    from_there.emplace_back(at, wanted == map.end() ? old : wanted->second);
    stays &= from_there.back().first == from_there.back().second;
  }
  if (stays) return {};
  return from_there;
}

Status CheckNotMoved(const Paths& paths, const process::ProcessId& id) {
  auto record = LoadSuspended(paths, id);
  if (!record || record->moved.empty()) return {};
  return Fail(
      Code::kFailedPrecondition,
      fmt::format("a resume of process {} onto another GPU failed, and the driver still has "
                  "its state there",
                  id.pid.value),
      fmt::format("`stasis resume {}` returns it to its own GPU; then it can be dumped",
                  id.pid.value));
}

std::string DriverName(const device::DriverInfo& driver) {
  return driver.kind + " " + driver.version;
}

Status CheckSameDriver(const Paths& paths, const process::ProcessId& id,
                       const device::DriverInfo& driver) {
  auto record = LoadSuspended(paths, id);
  const std::string now = DriverName(driver);
  if (!record || record->driver.empty() || record->driver == now) return {};
  return Fail(Code::kUnimplemented,
              fmt::format("process {} was suspended with driver {}, and this machine now has {}",
                          id.pid.value, record->driver, now),
              "it stays suspended; resume it with the driver that suspended it");
}

std::vector<SuspendedProcess> ListSuspended(const Paths& paths) {
  std::vector<SuspendedProcess> list;
  for (const auto& name : ListDir(Folder(paths)).value_or(std::vector<std::string>())) {
    if (!name.ends_with(kSuffix)) continue;
    auto text = ReadFile(Folder(paths) + "/" + name, 1 << 20);
    auto parsed = text ? Parse(*text) : std::nullopt;
    if (parsed && IsOurs(*parsed) && process::IsAlive(parsed->id)) list.push_back(*parsed);
  }
  return list;
}

void SweepSuspended(const Paths& paths) {
  auto names = ListDir(Folder(paths));
  if (!names) return;
  for (const auto& name : *names) {
    if (!name.ends_with(kSuffix)) continue;  // a suspend is writing it
    std::string path = Folder(paths) + "/" + name;
    auto text = ReadFile(path, 1 << 20);
    auto parsed = text ? Parse(*text) : std::nullopt;
    const bool torn = text && !parsed;  // by a power failure, in an earlier boot
    if (torn || (parsed && IsOurs(*parsed) && !process::IsAlive(parsed->id)))
      ::unlink(path.c_str());
  }
}

}  // namespace stasis::gpu_state
