#pragma once

#include <string>

namespace softgpu {

// "GPU-" and 36 characters, as NVIDIA's tools print it.
std::string FormatUuid(const unsigned char* uuid);

}  // namespace softgpu
