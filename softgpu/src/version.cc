// The symbol that distinguishes this driver from NVIDIA's.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) const char* softgpuVersion();

// Returns the version of softgpu, or SOFTGPU_DRIVER_VERSION if set. The string is valid while the
// library is loaded.
extern "C" const char* softgpuVersion() {
  const char* other = std::getenv("SOFTGPU_DRIVER_VERSION");
  return other != nullptr && *other != '\0' ? other : SOFTGPU_VERSION;
}
