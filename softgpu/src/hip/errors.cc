// Versions and errors of HIP.

#include <stdlib.h>

#include "hip/face.h"

namespace softgpu::hip {
namespace {

thread_local hipError_t t_last_error = CUDA_SUCCESS;

struct Result {
  hipError_t code;
  const char* name;
  const char* text;  // null: the driver's
};
constexpr Result kResults[] = {
#define STASIS_HIP_RESULT(name, result) {result, #name, nullptr},
#define STASIS_HIP_OWN_RESULT(name, value, text) {name, #name, text},
#include "abi/hip/results.def"
};

const Result* Find(hipError_t code) {
  for (const Result& result : kResults) {
    if (result.code == code) return &result;
  }
  return nullptr;
}

hipError_t PutVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = Version();
  return CUDA_SUCCESS;
}

}  // namespace

int Version() {
  const char* wanted = getenv("SOFTGPU_HIP_VERSION");
  return wanted != nullptr ? atoi(wanted) : kVersion;
}

hipError_t LastError() { return t_last_error; }
void SetLastError(hipError_t error) { t_last_error = error; }

namespace api {

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Result* result = Find(error);
  *name = result != nullptr ? result->name : nullptr;
  return result != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Result* result = Find(error);
  *text = nullptr;
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (result->text == nullptr) return softgpu::api::cuGetErrorString(error, text);
  *text = result->text;
  return CUDA_SUCCESS;
}

}  // namespace api

namespace own {

hipError_t hipDriverGetVersion(int* version) { return PutVersion(version); }
hipError_t hipRuntimeGetVersion(int* version) { return PutVersion(version); }

hipError_t hipPeekAtLastError() { return LastError(); }
hipError_t hipGetLastError() { return std::exchange(t_last_error, CUDA_SUCCESS); }
hipError_t hipExtGetLastError() { return hipGetLastError(); }

const char* hipGetErrorName(hipError_t error) {
  const Result* result = Find(error);
  return result != nullptr ? result->name : "hipErrorUnknown";
}

const char* hipGetErrorString(hipError_t error) {
  const char* text = nullptr;
  return api::cuGetErrorString(error, &text) == CUDA_SUCCESS ? text : "unknown error";
}

}  // namespace own
}  // namespace softgpu::hip
