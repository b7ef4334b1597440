#include "gpu_state/gpu_away.h"

#include "device/gpu_map.h"
#include "plan/plan.h"

namespace stasis::gpu_state {
namespace {

using device::GpuUuid;
using device::ProcessState;
using plan::Phase;
using plan::Plan;

}  // namespace

std::map<GpuUuid, uint64_t> DriverBytesByGpu(const Processes& processes,
                                             const device::GpuMap& map) {
  std::map<GpuUuid, uint64_t> bytes;
  for (const auto& p : processes) {
    if (p.initial != ProcessState::kCheckpointed) continue;
    for (const GpuUuid& gpu : p.gpus) {
      // How the process's memory is divided among several GPUs is not known, so assume equal parts.
      bytes[device::Mapped(map, gpu)] += p.device_bytes / p.gpus.size();
    }
  }
  return bytes;
}

uint64_t DriverBytes(const Processes& processes, bool were_away) {
  uint64_t sum = 0;
  for (const auto& p : processes) {
    if ((p.initial == ProcessState::kCheckpointed) == were_away) sum += p.device_bytes;
  }
  return sum;
}

void AddGpuAway(Plan& plan, Services& services, Processes& processes, SharedSuspend& shared,
                std::optional<Phase> tree_check, bool precopy, std::optional<Phase> before_stop) {
  Phase lock = GpuLock(services, processes);
  Phase checkpoint = GpuCheckpoint(services, processes, DriverBytes(processes, false));
  if (shared.empty()) {
    if (before_stop) plan.Add(std::move(*before_stop));
    plan.Add(std::move(lock));
    if (tree_check) plan.Add(std::move(*tree_check));
    plan.Add(std::move(checkpoint));
    return;
  }
  plan.Add(shared.DataRoom(DriverBytes(processes, false)));
  std::vector<Phase> ahead;
  if (precopy) ahead.push_back(shared.DataPrecopy());
  if (before_stop) ahead.push_back(std::move(*before_stop));
  if (!ahead.empty()) plan.AddParallel(std::move(ahead));
  plan.Add(shared.GateClose());
  if (tree_check) plan.Add(std::move(*tree_check));
  plan.Add(shared.DataExport(&processes));
  plan.AddParallel(
      {plan::InOrder("gpu-control", {shared.DataRelease(), std::move(lock), std::move(checkpoint)}),
       shared.DataSave()});
  plan.Add(shared.DataCommit());
}

void AddDataAway(Plan& plan, SharedSuspend& shared, Phase tree_check,
                 std::optional<Phase> before_stop) {
  plan.Add(shared.DataRoom(0));
  if (before_stop) plan.Add(std::move(*before_stop));
  plan.Add(shared.GateClose());
  plan.Add(std::move(tree_check));
  plan.Add(shared.DataExport(nullptr));
  plan.AddParallel({shared.DataRelease(), shared.DataSave()});
  plan.Add(shared.DataCommit());
}

namespace {

// The undo of the driver's phases does not save the data of kept contexts again, so it is an error
// if one of these processes is running again.
Status CheckKeptAreAway(Services& services, const Processes& processes) {
  Processes kept;
  for (const auto& p : processes) {
    if (p.context_kept) kept.push_back(p);
  }
  STASIS_ASSIGN(const bool back, AnyMemoryReturned(services, kept));
  return back ? Fail(PartlyResumed()) : Status{};
}

Phase DataReturn(Services& services, const Processes& processes, SharedResume& shared,
                 bool commits) {
  Phase phase = shared.DataReturn();
  phase.commits = commits;
  if (!commits) return phase;
  phase.undo = [&services, &processes, undo = std::move(phase.undo)]() -> Status {
    STASIS_TRY(undo());
    return CheckKeptAreAway(services, processes);
  };
  return phase;
}

bool DriverIsNotNeeded(const Processes& processes) {
  return std::all_of(processes.begin(), processes.end(),
                     [](const auto& p) { return p.initial == ProcessState::kRunning; });
}

}  // namespace

void AddGpuBack(Plan& plan, Services& services, const Processes& processes, GpuBack back) {
  if (back.shared != nullptr && back.programs.empty() && DriverIsNotNeeded(processes)) {
    plan.Add(back.shared->LoadRoom([] { return std::map<GpuUuid, uint64_t>(); },
                                   /*keep_ballast=*/false));
    plan.Add(back.shared->DataLoad());
    plan.Add(DataReturn(services, processes, *back.shared, back.commits));
    return;
  }
  Phase restore = GpuRestore(services, processes, back.map, back.driver_bytes);
  Phase unlock = GpuUnlock(services, processes);
  if (!back.commits) restore.undo = unlock.undo = nullptr;
  if (back.shared == nullptr) {
    restore.commits = back.commits;
    for (Phase& phase : back.programs) plan.Add(std::move(phase));
    if (back.without_driver) return;
    plan.Add(std::move(restore));
    plan.Add(std::move(unlock));
    return;
  }
  SharedResume* shared = back.shared;
  // The driver's undo connects to the agents, which have one client at a time.
  for (Phase* phase : {&restore, &unlock}) {
    if (!phase->undo) continue;
    phase->undo = [shared, undo = std::move(phase->undo)] {
      shared->Disconnect();
      return undo();
    };
  }
  std::vector<Phase> beside;
  if (back.programs.empty()) {
    plan.Add(
        shared->LoadRoom([&processes, map = back.map] { return DriverBytesByGpu(processes, map); },
                         /*keep_ballast=*/false));
    beside = {plan::InOrder("gpu-control", {std::move(restore), std::move(unlock)}),
              shared->DataLoad()};
  } else {
    std::vector<Phase> program = std::move(back.programs);
    Phase room = shared->LoadRoom([bytes = back.driver_bytes_by_gpu] { return bytes; },
                                  /*keep_ballast=*/!back.without_driver);
    restore.run = [shared, run = std::move(restore.run)](plan::PhaseScope& scope) -> Status {
      STASIS_TRY(scope.Await(SharedResume::kLoadRoom));
      STASIS_TRY(shared->FreeBallast(&scope, scope.deadline()));
      return run(scope);
    };
    if (!back.without_driver) {
      auto within = std::find_if(program.begin(), program.end(), [&](const Phase& phase) {
        return phase.name == back.restore_within;
      });
      (within == program.end() ? program : within->nested).push_back(std::move(restore));
      program.push_back(std::move(unlock));
    }
    beside = {std::move(*back.data_read),
              plan::InOrder("gpu-load", {std::move(room), shared->DataLoad()}),
              plan::InOrder("program-back", std::move(program))};
  }
  plan.AddParallel(std::move(beside));
  plan.Add(DataReturn(services, processes, *shared, back.commits));
}

}  // namespace stasis::gpu_state
