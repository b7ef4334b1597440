// Helpers of tests that link libamdhip64.

#include "abi/hip/functions.h"
#include "testing.h"

namespace softgpu::test {

std::string Name(CUresult result) { return stasis::hip::hipGetErrorName(result); }

}  // namespace softgpu::test
