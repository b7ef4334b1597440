#include "bench/choose_gpu.h"

#include "device/gpu_map.h"
#include "gpu_state/services.h"

namespace stasis::bench {

Result<device::Gpu> ChooseGpu(const cli::Globals& globals, const std::string& meant) {
  auto control = device::MakeDeviceControl(gpu_state::ControlOptionsOf(globals.settings()));
  STASIS_ASSIGN(auto driver, control->Driver());
  if (!driver.can_checkpoint) {
    return Fail(Code::kUnimplemented, "this machine's driver cannot suspend: " + driver.why_not,
                "`stasis check` checks this machine");
  }
  STASIS_ASSIGN(auto gpus, control->Gpus());
  return device::FindGpu(meant, gpus);
}

}  // namespace stasis::bench
