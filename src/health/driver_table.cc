#include "health/driver_table.h"

#include <fmt/format.h>

#include <charconv>

namespace stasis::health {
namespace {

// Sources: README.md of github.com/NVIDIA/cuda-checkpoint ("supports display driver version 550 and
// higher"; "570 Features"; at 570 "does not support GPU migration"), the CUDA driver API reference
// (CUDA checkpointing: CUcheckpointGpuPair, CUcheckpointCustomStorageInfo), and observations on
// driver 580 (docs/measurements/).
constexpr DriverAbility kAbilities[] = {
    {12040, "550", "checkpoints of single processes by NVIDIA's cuda-checkpoint program", ""},
    {12080, "570", "the checkpoint interface that Stasis needs, including a lock with a timeout",
     "Stasis can neither suspend nor dump GPU programs, because the driver has no checkpoint "
     "interface"},
    {13000, "580", "resuming and restoring on other GPUs (--gpu-map)",
     "--gpu-map does not work with drivers before 580"},
    {13040, "later", "storage of checkpoint data by the caller (not used by Stasis yet)", ""},
};

std::string Join(int api_version, bool able) {
  std::string text;
  for (const DriverAbility& row : kAbilities) {
    if ((api_version >= row.since_api) != able) continue;
    const std::string_view part = able ? row.able : row.without;
    if (!part.empty()) text += fmt::format("{}{}", text.empty() ? "" : "; ", part);
  }
  return text;
}

}  // namespace

std::span<const DriverAbility> DriverAbilities() { return kAbilities; }

std::string ApiName(int api_version) {
  return fmt::format("CUDA {}.{}", api_version / 1000, api_version % 1000 / 10);
}

std::string AbleTo(int api_version) { return Join(api_version, true); }
std::string Lacks(int api_version) { return Join(api_version, false); }

std::string LacksOn(std::string_view machine, std::string_view version) {
  int branch = 0;
  const auto parsed = std::from_chars(version.data(), version.data() + version.size(), branch);
  if (machine != "aarch64" || parsed.ec != std::errc() || branch >= kArm64CheckpointSince)
    return "";
  return fmt::format(
      "on arm64 NVIDIA's driver checkpoints from {} on. Before, programs started with `stasis run` "
      "can be suspended with --keep-context, and nothing else works",
      kArm64CheckpointSince);
}

}  // namespace stasis::health
