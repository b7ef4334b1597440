// What each version of NVIDIA's driver can do for us, as one table.
#pragma once

#include <span>
#include <string>

namespace stasis::health {

struct DriverAbility {
  int since_api;        // what cuDriverGetVersion says at least: 12080 is CUDA 12.8
  const char* driver;   // the first driver with it
  const char* able;     // "moving programs to other GPUs": what it can do
  const char* without;  // what is missing in an older one; empty: nothing that Stasis would use
};

// Oldest first.
std::span<const DriverAbility> DriverAbilities();

// "CUDA 12.8".
std::string ApiName(int api_version);
// What a driver of that version can do, and lacks; sentences' parts, joined by commas.
std::string AbleTo(int api_version);
std::string Lacks(int api_version);

}  // namespace stasis::health
