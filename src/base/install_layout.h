// The location of installed programs. The build tree, the tarball and a system package share one
// layout:
//   bin/stasis  libexec/…  lib/softgpu/libcuda.so.1  workloads/
// A program finds its siblings relative to its own path, so the tree can be moved.
// libexec/compat/cuda-checkpoint is a link to bin/stasis.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis {

// Returns the root of the tree, derived from /proc/self/exe.
Result<std::string> InstallRoot();
// Returns the path of an internal program, for example "stasis-shim". The error kNotFound names the
// path.
Result<std::string> LibexecProgram(const std::string& name);

}  // namespace stasis
