// A table of the checkpoint abilities of NVIDIA's driver versions.
#pragma once

#include <span>
#include <string>

namespace stasis::health {

struct DriverAbility {
  int since_api;        // minimum result of cuDriverGetVersion: 12080 is CUDA 12.8
  const char* driver;   // the first driver with it
  const char* able;     // the ability: "moving programs to other GPUs"
  const char* without;  // limitation without it; empty if Stasis does not need it
};

// Oldest first.
std::span<const DriverAbility> DriverAbilities();

// Formats as "CUDA 12.8".
std::string ApiName(int api_version);
// Describes what a driver of that version supports and lacks, as clauses joined by commas.
std::string AbleTo(int api_version);
std::string Lacks(int api_version);

}  // namespace stasis::health
