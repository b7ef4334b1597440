// The one symbol by which a program tells this driver from NVIDIA's.

extern "C" __attribute__((visibility("default"))) const char* softgpuVersion();

// The version of softgpu, for as long as the library is loaded.
extern "C" const char* softgpuVersion() { return SOFTGPU_VERSION; }
