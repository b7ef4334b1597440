#include "device/gpu_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace stasis::device {
namespace {

constexpr size_t kShortestPrefix = 8;  // "GPU-" and four digits

tl::unexpected<Error> Refuse(std::string message) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0, std::move(message),
              "--gpu-map takes OLD=NEW,…; OLD and NEW are a UUID, an index or a name (`stasis gpu "
              "ls`)");
}

bool Means(std::string_view meant, const Gpu& gpu) {
  int index = 0;
  auto [end, error] = std::from_chars(meant.data(), meant.data() + meant.size(), index);
  if (error == std::errc{} && end == meant.data() + meant.size()) return gpu.index == index;
  if (meant == gpu.name) return true;
  return meant.size() >= kShortestPrefix && gpu.uuid.value.starts_with(meant);
}

std::string Describe(const Gpu& gpu) {
  return fmt::format("{} ({}, {})", gpu.index, gpu.uuid.value, gpu.name);
}

}  // namespace

Result<Gpu> FindGpu(std::string_view meant, const std::vector<Gpu>& gpus) {
  std::vector<Gpu> found;
  std::copy_if(gpus.begin(), gpus.end(), std::back_inserter(found),
               [&](const Gpu& gpu) { return Means(meant, gpu); });
  if (found.size() == 1) return found.front();
  std::string list;
  for (const Gpu& gpu : found.empty() ? gpus : found) {
    list += (list.empty() ? "" : ", ") + Describe(gpu);
  }
  if (found.empty()) {
    return Fail(Code::kNotFound, Domain::kStasis, 0, fmt::format("there is no GPU \"{}\"", meant),
                list.empty() ? "there are none" : "there are: " + list);
  }
  return Refuse(fmt::format("\"{}\" is ambiguous: it matches {}", meant, list));
}

Result<GpuMap> ParseGpuMap(std::string_view text, const std::vector<Gpu>& old_gpus,
                           const std::vector<Gpu>& new_gpus) {
  if (text.empty()) return GpuMap{};
  std::vector<std::pair<Gpu, Gpu>> pairs;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    std::string_view item = text.substr(at, end - at);
    at = end + 1;
    size_t equals = item.find('=');
    if (equals == item.npos || equals == 0 || equals + 1 == item.size()) {
      return Refuse(fmt::format("\"{}\" is not OLD=NEW", item));
    }
    STASIS_ASSIGN(Gpu from, Annotate(FindGpu(item.substr(0, equals), old_gpus),
                                     "the GPUs that the program had"));
    STASIS_ASSIGN(Gpu to,
                  Annotate(FindGpu(item.substr(equals + 1), new_gpus), "the GPUs of this machine"));
    pairs.emplace_back(std::move(from), std::move(to));
  }
  const auto named = pairs;
  for (const Gpu& old_gpu : old_gpus) {
    auto same = [&](const auto& pair) { return pair.first.uuid == old_gpu.uuid; };
    if (std::any_of(named.begin(), named.end(), same)) continue;
    // If no named GPU moves here, this GPU's state stays. Otherwise it moves to the place that the
    // other GPU left or, if that is taken too, to the next free place along the chain.
    GpuUuid place = old_gpu.uuid;
    for (size_t i = 0; i < named.size(); ++i) {
      for (const auto& [from, to] : named) {
        if (to.uuid != place) continue;
        place = from.uuid;
        break;
      }
    }
    auto here = std::find_if(new_gpus.begin(), new_gpus.end(),
                             [&](const Gpu& gpu) { return gpu.uuid == place; });
    if (here == new_gpus.end()) {
      return Fail(
          Code::kFailedPrecondition,
          fmt::format("GPU {} of the program is not in this machine, and the GPU map has no "
                      "replacement for it",
                      Describe(old_gpu)),
          "name it in --gpu-map");
    }
    pairs.emplace_back(old_gpu, *here);
  }
  GpuMap map;
  for (const auto& [from, to] : pairs) {
    if (from.name != to.name) {
      return Fail(Code::kFailedPrecondition,
                  fmt::format("GPU {} is a {}, and {} is a {}: a program can only move to the same "
                              "model",
                              from.uuid.value, from.name, to.uuid.value, to.name));
    }
    for (const auto& [old_gpu, new_gpu] : map) {
      if (old_gpu == from.uuid) return Refuse(from.uuid.value + " is named twice");
      if (new_gpu == to.uuid) {
        return Refuse(fmt::format("both {} and {} would move to {}", old_gpu.value, from.uuid.value,
                                  to.uuid.value));
      }
    }
    map.emplace_back(from.uuid, to.uuid);
  }
  return map;
}

Result<GpuMap> ReplaceMissingGpus(const std::vector<Gpu>& old_gpus,
                                  const std::vector<Gpu>& new_gpus) {
  // Returns the GPUs of a model that are in `gpus` but not in `others`.
  auto only_in = [](const std::vector<Gpu>& gpus, const std::vector<Gpu>& others,
                    const std::string& model) {
    std::vector<Gpu> found;
    for (const Gpu& gpu : gpus) {
      auto same = [&](const Gpu& other) { return other.uuid == gpu.uuid; };
      if (gpu.name == model && std::none_of(others.begin(), others.end(), same)) {
        found.push_back(gpu);
      }
    }
    return found;
  };
  GpuMap map;
  for (const Gpu& gpu : old_gpus) {
    const auto missing = only_in(old_gpus, new_gpus, gpu.name);
    const auto added = only_in(new_gpus, old_gpus, gpu.name);
    const auto at = std::find_if(missing.begin(), missing.end(),
                                 [&](const Gpu& other) { return other.uuid == gpu.uuid; });
    if (at == missing.end()) {
      map.emplace_back(gpu.uuid, gpu.uuid);
    } else if (added.size() == missing.size()) {
      map.emplace_back(gpu.uuid, added[static_cast<size_t>(at - missing.begin())].uuid);
    } else {
      std::string list;
      for (const Gpu& other : added) list += (list.empty() ? "" : ", ") + Describe(other);
      return Fail(Code::kUnimplemented,
                  fmt::format("GPU {} of the program is not here, and {}", Describe(gpu),
                              added.empty() ? "there is no other GPU of its model"
                                            : "several may replace it: " + list));
    }
  }
  return map;
}

GpuUuid Mapped(const GpuMap& map, const GpuUuid& gpu) {
  for (const auto& [from, to] : map) {
    if (from == gpu) return to;
  }
  return gpu;
}

}  // namespace stasis::device
