#include "device/granted_gpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/gpu_map.h"

namespace stasis::device {
namespace {

constexpr const char* kHint =
    "grant GPUs with --gpus or CUDA_VISIBLE_DEVICES; `stasis gpu ls` lists the GPUs";

const Gpu* Find(const std::vector<Gpu>& gpus, const GpuUuid& uuid) {
  const auto at =
      std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.uuid == uuid; });
  return at == gpus.end() ? nullptr : &*at;
}

std::string List(const std::vector<Gpu>& gpus) {
  std::string list;
  for (const Gpu& gpu : gpus) {
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", gpu.uuid.value, gpu.name);
  }
  return list;
}

// Builds a map pair by pair.
class Moves {
 public:
  bool IsMapped(const GpuUuid& from) const {
    return std::any_of(map_.begin(), map_.end(), [&](const auto& p) { return p.first == from; });
  }
  bool IsTaken(const GpuUuid& to) const {
    return std::any_of(map_.begin(), map_.end(), [&](const auto& p) { return p.second == to; });
  }
  void Add(const GpuUuid& from, const GpuUuid& to) { map_.emplace_back(from, to); }

  // Moves `gpu` to the first GPU of its model in `to` that is not taken. Returns false if there is
  // none.
  bool AddFirstFree(const Gpu& gpu, const std::vector<Gpu>& to) {
    for (const Gpu& other : to) {
      if (other.name != gpu.name || IsTaken(other.uuid)) continue;
      Add(gpu.uuid, other.uuid);
      return true;
    }
    return false;
  }

  // Returns the place that became free when other state moved to `gpu`, along the chain of moves.
  GpuUuid PlaceLeftFor(const GpuUuid& gpu) const {
    GpuUuid place = gpu;
    for (size_t i = 0; i < map_.size(); ++i) {
      const auto mover =
          std::find_if(map_.begin(), map_.end(), [&](const auto& p) { return p.second == place; });
      if (mover == map_.end()) break;
      place = mover->first;
    }
    return place;
  }

  const GpuMap& map() const { return map_; }

 private:
  GpuMap map_;
};

// Adds the GPUs that no wanted GPU has moved: they stay where they can.
Status AddRest(const std::vector<Gpu>& old_gpus, const std::vector<Gpu>& new_gpus, Moves& moves) {
  for (const Gpu& gpu : old_gpus) {
    if (moves.IsMapped(gpu.uuid) || moves.IsTaken(gpu.uuid)) continue;
    if (Find(new_gpus, gpu.uuid) != nullptr) moves.Add(gpu.uuid, gpu.uuid);
  }
  for (const Gpu& gpu : old_gpus) {
    if (moves.IsMapped(gpu.uuid)) continue;
    const Gpu* left = Find(new_gpus, moves.PlaceLeftFor(gpu.uuid));
    if (left != nullptr && left->name == gpu.name && !moves.IsTaken(left->uuid)) {
      moves.Add(gpu.uuid, left->uuid);
    } else if (!moves.AddFirstFree(gpu, new_gpus)) {
      return Fail(Code::kFailedPrecondition,
                  fmt::format("the program saw GPU {} ({}), and this machine has no GPU of this "
                              "model left for it",
                              gpu.uuid.value, gpu.name),
                  "the driver needs a place for every GPU that the program saw, used or not");
    }
  }
  return {};
}

}  // namespace

Result<std::vector<Gpu>> ReadGranted(std::string_view list, const std::vector<Gpu>& gpus) {
  std::vector<Gpu> granted;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    std::string_view item = list.substr(at, end - at);
    at = end + 1;
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (item.empty() || item.starts_with('-')) break;
    STASIS_ASSIGN(Gpu gpu, Annotate(FindGpu(item, gpus), "the granted GPUs"));
    if (Find(granted, gpu.uuid) != nullptr) {
      return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                  fmt::format("GPU {} is granted twice: \"{}\"", gpu.uuid.value, list), kHint);
    }
    granted.push_back(std::move(gpu));
  }
  if (granted.empty()) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("\"{}\" grants no GPU", list), kHint);
  }
  return granted;
}

Result<GpuMap> MapToGranted(const std::vector<Gpu>& old_gpus, const std::vector<Gpu>& new_gpus,
                            const std::vector<GpuUuid>& wanted, const std::vector<Gpu>& granted) {
  Moves moves;
  for (const GpuUuid& uuid : wanted) {
    if (Find(granted, uuid) != nullptr && !moves.IsMapped(uuid)) moves.Add(uuid, uuid);
  }
  bool stays = true;
  for (const GpuUuid& uuid : wanted) {
    if (moves.IsMapped(uuid)) continue;
    stays = false;
    const Gpu* gpu = Find(old_gpus, uuid);
    if (gpu == nullptr) {
      return Fail(Code::kFailedPrecondition,
                  fmt::format("nothing is known about GPU {} of the program", uuid.value));
    }
    if (!moves.AddFirstFree(*gpu, granted)) {
      return Fail(Code::kFailedPrecondition,
                  fmt::format("the program may use {} GPU(s), and none of the granted GPUs can "
                              "replace {} ({}). Granted: {}",
                              wanted.size(), gpu->uuid.value, gpu->name, List(granted)),
                  "grant as many GPUs of the same models as the program had");
    }
  }
  if (stays) return GpuMap{};
  STASIS_TRY(AddRest(old_gpus, new_gpus, moves));
  return moves.map();
}

Status CheckGranted(const GpuMap& map, const std::vector<GpuUuid>& wanted,
                    const std::vector<Gpu>& granted) {
  for (const GpuUuid& uuid : wanted) {
    const GpuUuid there = Mapped(map, uuid);
    if (Find(granted, there) != nullptr) continue;
    return Fail(Code::kFailedPrecondition,
                fmt::format("the program would use GPU {}, which is not granted. Granted: {}",
                            there.value, List(granted)),
                "use --gpu-map auto, which chooses granted GPUs, or grant this GPU too");
  }
  return {};
}

}  // namespace stasis::device
