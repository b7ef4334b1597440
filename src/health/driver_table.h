// A table of the checkpoint abilities of NVIDIA's driver versions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace stasis::health {

struct DriverAbility {
  int since_api;       // minimum result of cuDriverGetVersion: 12080 is CUDA 12.8
  const char* driver;  // the first driver version with this ability
  const char* able;    // the ability: "resuming and restoring on other GPUs"
  const char*
      without;  // the limitation of older drivers; empty if Stasis does not need the ability
};

// Returns the table, oldest ability first.
std::span<const DriverAbility> DriverAbilities();

// The first driver with checkpoints on arm64 hosts.
inline constexpr int kArm64CheckpointSince = 595;
// Returns the limitation that the driver of this `version`, such as "580.159.04", has only on the
// architecture `machine` ("uname -m"), or "" if there is none.
std::string LacksOn(std::string_view machine, std::string_view version);

// Formats 12080 as "CUDA 12.8".
std::string ApiName(int api_version);
// Return the abilities of a driver with this `api_version`, and the limitations that follow from
// the abilities it lacks. Several are joined by "; ".
std::string AbleTo(int api_version);
std::string Lacks(int api_version);

}  // namespace stasis::health
