// The checks before a restore, and its result. restore_run.h has the phases.
#include "operations/restore.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/operation_id.h"
#include "checkpoint/program_pids.h"
#include "checks/image_trust.h"
#include "checks/pids.h"
#include "checks/restorable.h"
#include "criu/task_ids.h"
#include "device/gpu_map.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/host_memory.h"
#include "ipc/pidns_init.h"
#include "operations/choose_gpus.h"
#include "operations/execute.h"
#include "operations/hold_job.h"
#include "operations/recorded.h"
#include "operations/restore_run.h"
#include "plan/journal.h"
#include "plan/plan.h"
#include "store/image_reader.h"

namespace stasis::operations {
namespace {

using plan::Plan;

std::vector<device::Gpu> RecordedGpus(const store::Manifest& manifest) {
  std::vector<device::Gpu> gpus;
  for (const auto& gpu : manifest.gpus) {
    gpus.push_back({{gpu.uuid}, static_cast<int>(gpus.size()), gpu.name, gpu.total_bytes, 0});
  }
  return gpus;
}

// Returns no ids if CRIU's file cannot be read, which is reported later.
std::set<pid_t> TaskIds(const store::ImageReader& reader) {
  auto file = reader.OpenFile("cpu/pstree.img");
  if (!file) return {};
  return criu::ReadTaskIds(file->fd.get(), file->size_bytes, reader.manifest().criu.shell_job)
      .value_or(std::set<pid_t>{});
}

}  // namespace

Status CheckCpuMemory(gpu_state::Services& services, const store::Manifest& manifest) {
  return gpu_state::RetryWithoutUnusedArenas(
      services, [&] { return gpu_state::CheckHostMemory(CpuBytes(manifest), {::getpid()}); });
}

// A held restore without a map replaces the GPUs that the new container does not have.
Result<device::GpuMap> ChooseGpus(gpu_state::Services& services, const store::Manifest& manifest,
                                  const RestoreOptions& restore) {
  const bool replaces_missing =
      restore.gpu_map == "auto" || (restore.gpu_map.empty() && restore.held);
  const bool is_granted = !restore.granted.empty();
  if (manifest.gpus.empty() || (restore.gpu_map.empty() && !replaces_missing && !is_granted)) {
    return device::GpuMap{};
  }
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  const auto& refused = restore.refused_minors;
  std::erase_if(gpus, [&](const device::Gpu& gpu) {
    return gpu.minor && std::find(refused.begin(), refused.end(), *gpu.minor) != refused.end();
  });
  const auto recorded = RecordedGpus(manifest);
  if (is_granted) {
    return ChooseGranted(restore.gpu_map, restore.granted, GpusOf(RecordedProcesses(manifest)),
                         recorded, gpus);
  }
  if (!replaces_missing) return device::ParseGpuMap(restore.gpu_map, recorded, gpus);
  // The driver needs no map if every GPU that the program has used is here.
  const bool complete =
      std::all_of(manifest.processes.begin(), manifest.processes.end(), [&](const auto& process) {
        return std::all_of(process.gpu_uuids.begin(), process.gpu_uuids.end(), [&](const auto& id) {
          return std::any_of(gpus.begin(), gpus.end(),
                             [&](const device::Gpu& gpu) { return gpu.uuid.value == id; });
        });
      });
  if (complete) return device::GpuMap{};
  auto map = device::ReplaceMissingGpus(recorded, gpus);
  if (!map) {
    map.error().hint = restore.held
                           ? "set STASIS_GPU_MAP=OLD=NEW,… in the environment of the command that "
                             "restores it; `stasis gpu ls` lists the GPUs"
                           : "choose with --gpu-map OLD=NEW,…; `stasis gpu ls` lists the GPUs";
  }
  return map;
}

Result<OperationResult> Restore(Session& session, const RestoreOptions& given,
                                const OperationOptions& options) {
  gpu_state::Services& services = session.services;
  STASIS_TRY(session.criu->CheckPrivileges());
  STASIS_ASSIGN(std::string criu_path, session.criu->Find(services.settings.criu));
  if (::getpid() == 1) {
    return Fail(
        Code::kUnimplemented,
        "stasis is process 1 of this pid namespace: when it exits, the kernel kills the restored "
        "program",
        "start it from a shell that stays: `sh -c 'stasis restore ... && stasis wait ...'`");
  }
  RestoreOptions restore = given;
  const bool has_pidns = ipc::PidnsInit::Get() != nullptr;
  if (restore.new_pidns && !has_pidns && ::geteuid() != 0) {
    return Fail(Code::kPermissionDenied, "only root can create a pid namespace with its own /proc",
                "run it as root, or without --new-pidns");
  }
  STASIS_TRY(RecoverFirst(session));
  STASIS_ASSIGN(auto reader, restore.ranges == nullptr
                                 ? store::ImageReader::Open(restore.image)
                                 : store::ImageReader::OpenWithoutRanges(restore.image));
  const store::Manifest& manifest = reader->manifest();
  STASIS_TRY(checks::CheckImageTrust(*reader, Caller::Self(), services.paths, restore.trust_image));
  if (restore.held && checkpoint::NeedsCpuFiles(manifest)) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                "the GPU data beside CRIU's files must not contain CPU memory");
  }
  STASIS_TRY(criu::CheckForUser(WithRecorded(restore.criu, manifest)));
  std::optional<jobs::Claim> held;
  if (!restore.held) {
    STASIS_ASSIGN(held, HoldJob(services.paths, WantedJob(restore, manifest)));
  }
  if (restore.new_pidns && checkpoint::BringsItsPidNamespace(manifest)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "the image already contains a pid namespace", "omit --new-pidns");
  }
  if (has_pidns && !restore.new_pidns && !restore.held &&
      checks::NeedsPidNamespace(manifest, TaskIds(*reader))) {
    // The program is not running here, so no copy of it writes to its files.
    restore.new_pidns = restore.share_files = true;
  }
  STASIS_ASSIGN(device::GpuMap map, ChooseGpus(services, manifest, restore));
  STASIS_TRY(checks::CheckRestorable(services, *reader, map, restore.new_pidns, restore.held));
  if (!options.ignore_memory) STASIS_TRY(CheckCpuMemory(services, manifest));

  OperationResult result;
  result.operation = OperationId();
  result.target = result.image = restore.shown_as.empty() ? restore.image : restore.shown_as;
  result.image_bytes = manifest.TotalBytes();
  result.driver_kind = manifest.software.driver_kind;
  for (const auto& p : manifest.processes) result.device_bytes += p.device_bytes;
  for (const auto& range : manifest.ranges) result.shared_bytes += range.size_bytes;

  const device::GpuMap moved = map;
  RestoreRun run(session, *reader, restore, std::move(held), std::move(map), std::move(criu_path),
                 options.ignore_memory);
  run.LimitMemory(options.arena_limit_bytes);
  STASIS_TRY(run.AddExpectedData());
  if (!restore.held) STASIS_TRY(run.CheckNeighbours(options.dry_run));
  if (options.dry_run) {
    Plan plan = run.MakePlan();
    return Execute(session, {}, plan, options, std::move(result));
  }
  if (!restore.held) STASIS_TRY(run.ClaimJob());
  Plan plan = run.MakePlan();
  STASIS_ASSIGN(process::Stat self, process::ReadStat({::getpid()}));
  plan::Operation operation;
  operation.verb = "restore";
  operation.owner = self.id;
  STASIS_ASSIGN(operation.boot_id, process::BootId());
  STASIS_ASSIGN(result, Execute(session, run.MakeOperation(std::move(operation)), plan, options,
                                std::move(result)));
  result.job = run.job();
  result.pid = run.root_pid();
  result.saved.cold = run.cold_bytes();
  result.notes = run.notes();
  if (restore.new_pidns && !given.new_pidns) {
    result.notes.emplace_back(
        "The program runs in a pid namespace of its own, because its process ids are taken here.");
  }
  if (restore.gpu_map.empty() || restore.gpu_map == "auto") {
    const auto had = GpusOf(RecordedProcesses(manifest));
    for (const auto& [from, to] : moved) {
      // A move to a granted GPU exchanges it with one that the program does not use.
      const bool is_its = std::find(had.begin(), had.end(), from) != had.end();
      if (from != to && (is_its || restore.granted.empty())) {
        result.notes.push_back(fmt::format("GPU {} replaces {}.", to.value, from.value));
      }
    }
  }
  return result;
}

}  // namespace stasis::operations
