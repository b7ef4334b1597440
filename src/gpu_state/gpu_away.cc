#include "gpu_state/gpu_away.h"

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
      GpuUuid to = gpu;
      for (const auto& [from, other] : map) {
        if (from == gpu) to = other;
      }
      // How one process's memory is spread over several GPUs is not told.
      bytes[to] += p.device_bytes / p.gpus.size();
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

void AddGpuAway(Plan& plan, Services& services, const Processes& processes, SharedSuspend& shared,
                std::optional<Phase> tree_check) {
  Phase lock = GpuLock(services, processes);
  Phase checkpoint = GpuCheckpoint(services, processes, DriverBytes(processes, false));
  if (shared.empty()) {
    plan.Add(std::move(lock));
    if (tree_check) plan.Add(std::move(*tree_check));
    plan.Add(std::move(checkpoint));
    return;
  }
  plan.Add(shared.DataRoom(DriverBytes(processes, false)));
  plan.Add(shared.GateClose());
  if (tree_check) plan.Add(std::move(*tree_check));
  plan.Add(shared.DataExport());
  std::vector<Phase> control, beside;
  control.push_back(shared.DataRelease());
  control.push_back(std::move(lock));
  control.push_back(std::move(checkpoint));
  beside.push_back(plan::InOrder("gpu-control", std::move(control)));
  beside.push_back(shared.DataSave());
  plan.AddParallel(std::move(beside));
  plan.Add(shared.DataCommit());
}

void AddDataAway(Plan& plan, SharedSuspend& shared, Phase tree_check) {
  plan.Add(shared.DataRoom(0));
  plan.Add(shared.GateClose());
  plan.Add(std::move(tree_check));
  plan.Add(shared.DataExport());
  std::vector<Phase> beside;
  beside.push_back(shared.DataRelease());
  beside.push_back(shared.DataSave());
  plan.AddParallel(std::move(beside));
  plan.Add(shared.DataCommit());
}

namespace {

// Whose context was kept is nobody's to take away again by the driver's undo: one that runs by then
// must be told of.
Status CheckKeptAreAway(Services& services, const Processes& processes) {
  Processes kept;
  for (const auto& p : processes) {
    if (p.context_kept) kept.push_back(p);
  }
  STASIS_ASSIGN(const bool back, IsBack(services, kept));
  return back ? Fail(HalfWayBack()) : Status{};
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

bool DriverHasNoPart(const Processes& processes) {
  return std::all_of(processes.begin(), processes.end(),
                     [](const auto& p) { return p.initial == ProcessState::kRunning; });
}

}  // namespace

void AddGpuBack(Plan& plan, Services& services, const Processes& processes, GpuBack back) {
  if (back.shared != nullptr && back.programs.empty() && DriverHasNoPart(processes)) {
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
    plan.Add(std::move(restore));
    plan.Add(std::move(unlock));
    return;
  }
  SharedResume* shared = back.shared;
  // The driver's undo asks the agents, who have one client at a time.
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
    std::vector<Phase> control;
    control.push_back(std::move(restore));
    control.push_back(std::move(unlock));
    beside.push_back(plan::InOrder("gpu-control", std::move(control)));
    beside.push_back(shared->DataLoad());
  } else {
    std::vector<Phase> load, program = std::move(back.programs);
    load.push_back(shared->LoadRoom([bytes = back.driver_bytes_by_gpu] { return bytes; },
                                    /*keep_ballast=*/true));
    load.push_back(shared->DataLoad());
    restore.run = [shared, run = std::move(restore.run)](plan::PhaseScope& scope) -> Status {
      STASIS_TRY(scope.Await(SharedResume::kLoadRoom));
      STASIS_TRY(shared->FreeBallast(&scope, scope.deadline()));
      return run(scope);
    };
    program.push_back(std::move(restore));
    program.push_back(std::move(unlock));
    beside.push_back(std::move(*back.data_read));
    beside.push_back(plan::InOrder("gpu-load", std::move(load)));
    beside.push_back(plan::InOrder("program-back", std::move(program)));
  }
  plan.AddParallel(std::move(beside));
  plan.Add(DataReturn(services, processes, *shared, back.commits));
}

}  // namespace stasis::gpu_state
