// The one symbol by which a program tells this driver from NVIDIA's.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) const char* softgpuVersion();

// The version of softgpu, for as long as the library is loaded; another one where
// SOFTGPU_DRIVER_VERSION says so.
extern "C" const char* softgpuVersion() {
  const char* other = std::getenv("SOFTGPU_DRIVER_VERSION");
  return other != nullptr && *other != '\0' ? other : SOFTGPU_VERSION;
}
