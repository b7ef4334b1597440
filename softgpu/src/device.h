#pragma once

#include <string>

namespace softgpu {

// Formats a UUID as "GPU-" and 36 characters, like NVIDIA's tools.
std::string FormatUuid(const unsigned char* uuid);

}  // namespace softgpu
