// Fuzzes the files of a job's directory: every parser gets the input.
#include "jobs/record.h"

#include "base/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis;
  using namespace stasis::jobs;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (auto processes = DecodeProcesses(text)) {
    FuzzCheck(processes->root.pid.value > 1);
    // For an adopted program, the shim's pid is 0.
    FuzzCheck(processes->shim.pid.value > 1 || processes->shim.pid.value == 0);
  }
  if (auto ending = DecodeEnding(text)) {
    FuzzCheck(ending->root.pid.value > 1 && ending->ending.code >= 0 && ending->ending.code < 256);
  }
  if (auto mark = DecodeDumped(text)) {
    FuzzCheck(mark->root.pid.value > 1 && mark->image.starts_with('/'));
    auto again = DecodeDumped(EncodeDumped(*mark));
    FuzzCheck(again && again->image == mark->image && again->root == mark->root);
  }
  return 0;
}
