#include "device/hip/hip_driver.h"

#include "abi/driver_kinds.h"
#include "abi/hip/as_driver.h"
#include "base/file.h"

namespace stasis::device::hip {

const char kNoCheckpoint[] =
    "AMD's driver cannot checkpoint a process; `stasis suspend` lets the agent move the memory of "
    "HIP programs, and their contexts stay on the GPU";

bool IsHipDriver(std::string_view driver_kind) { return abi::IsHip(driver_kind); }

Error NoSuchStep(std::string_view step, int pid) {
  Error error{Code::kUnimplemented};
  error.message = "process " + std::to_string(pid) + " uses HIP, whose driver has no " +
                  std::string(step) + " of a process";
  error.hint =
      "`stasis suspend` and `stasis resume` move the memory of a program that was started with "
      "`stasis run`; its context stays on the GPU";
  return error;
}

bool IsRuntimeLibrary(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 == 0
  return name.starts_with(stasis::hip::as_driver::kLibraryName);
}

bool IsRenderNode(std::string_view path) { return path.starts_with("/dev/dri/renderD"); }

std::string KernelDriverVersion() {
  auto text = ReadFile("/sys/module/amdgpu/version", 256);
  if (!text) return {};
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

}  // namespace stasis::device::hip
