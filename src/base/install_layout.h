// Where our own programs lie. The build tree, the tarball and a system package have one shape:
//   bin/stasis  libexec/…  libexec/compat/cuda-checkpoint  lib/softgpu/libcuda.so.1  workloads/
// so a program finds its siblings from its own path, wherever the tree was moved to.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis {

// The root of that tree, from /proc/self/exe.
Result<std::string> InstallRoot();
// Path of a program that only our own programs start, e.g. "stasis-shim"; kNotFound names the path.
Result<std::string> LibexecProgram(const std::string& name);

}  // namespace stasis
