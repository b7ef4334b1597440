#include "device/cuda/cuda_error.h"

#include <algorithm>
#include <iterator>

#include "abi/cuda/driver_abi.h"

namespace stasis::device::cuda {
namespace {

using namespace stasis::cuda;  // NOLINT: the driver's error numbers
using wire::Op;

struct CodeRow {
  CUresult result;
  Code code;
};
constexpr CodeRow kCodes[] = {
    {CUDA_ERROR_INVALID_VALUE, Code::kInvalidArgument},
    {CUDA_ERROR_OUT_OF_MEMORY, Code::kResourceExhausted},
    {CUDA_ERROR_NOT_INITIALIZED, Code::kFailedPrecondition},
    {CUDA_ERROR_DEINITIALIZED, Code::kUnavailable},
    {CUDA_ERROR_STUB_LIBRARY, Code::kUnimplemented},
    {CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, Code::kUnimplemented},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, Code::kUnavailable},
    {CUDA_ERROR_NO_DEVICE, Code::kUnimplemented},
    {CUDA_ERROR_INVALID_DEVICE, Code::kInvalidArgument},
    {CUDA_ERROR_DEVICE_NOT_LICENSED, Code::kUnimplemented},
    {CUDA_ERROR_OPERATING_SYSTEM, Code::kInternal},
    {CUDA_ERROR_ILLEGAL_STATE, Code::kFailedPrecondition},
    {CUDA_ERROR_NOT_READY, Code::kDeadlineExceeded},
    {CUDA_ERROR_NOT_PERMITTED, Code::kPermissionDenied},
    {CUDA_ERROR_NOT_SUPPORTED, Code::kUnimplemented},
    {CUDA_ERROR_SYSTEM_NOT_READY, Code::kUnavailable},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, Code::kUnimplemented},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, Code::kUnimplemented},
    {CUDA_ERROR_TIMEOUT, Code::kDeadlineExceeded},
};

struct HintRow {
  Op op;
  CUresult result;
  const char* hint;
};
// Causes that were observed or reported for drivers 570 to 580.
constexpr HintRow kHints[] = {
    {Op::kLock, CUDA_ERROR_NOT_READY,
     "the program did not leave the driver in time, because of a long kernel or a call that waits; "
     "it continues as before. Try again with a longer timeout"},
    {Op::kLock, CUDA_ERROR_NOT_SUPPORTED,
     "the driver cannot checkpoint this program: it uses a profiler or debugger, or its GPU, MIG "
     "or vGPU mode is not supported"},
    {Op::kCheckpoint, CUDA_ERROR_NOT_SUPPORTED,
     "the program uses memory that the driver cannot checkpoint: managed memory "
     "(cudaMallocManaged) "
     "or memory imported from another process. After an unlock it continues undamaged"},
    {Op::kCheckpoint, CUDA_ERROR_OUT_OF_MEMORY,
     "the driver copies GPU memory into the program's host memory, and the machine or the "
     "program's "
     "control group has too little memory left"},
    {Op::kRestore, CUDA_ERROR_OUT_OF_MEMORY,
     "the GPU has too little free memory. With all known drivers, later restores of this process "
     "fail too, even with enough memory"},
    {Op::kRestore, CUDA_ERROR_OPERATING_SYSTEM,
     "after a restore has run out of GPU memory, all later restores of the process fail like this; "
     "end the process, or restore it from an image"},
    {Op::kRestore, CUDA_ERROR_NOT_SUPPORTED,
     "the program had mapped memory of another process, as NCCL does by default. Start it with "
     "NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0"},
    {Op::kRestore, CUDA_ERROR_INVALID_VALUE,
     "either the GPU map does not name every GPU of the process, or names one of another model, or "
     "the program had shared memory through legacy IPC (NCCL_P2P_DISABLE=1 avoids it)"},
};

}  // namespace

std::string_view OpName(Op op) {
  static constexpr std::string_view kNames[] = {
      "",     "start the driver", "list the GPUs", "query the state", "query the restore thread",
      "lock", "checkpoint",       "restore",       "unlock",          "end the session",
      "leave"};
  return kNames[static_cast<size_t>(op)];
}

bool MayLast(int cu_result) {
  static constexpr CUresult kHarmless[] = {CUDA_SUCCESS,
                                           CUDA_ERROR_INVALID_VALUE,
                                           CUDA_ERROR_OUT_OF_MEMORY,
                                           CUDA_ERROR_NOT_INITIALIZED,
                                           CUDA_ERROR_ILLEGAL_STATE,
                                           CUDA_ERROR_NOT_READY,
                                           CUDA_ERROR_NOT_PERMITTED,
                                           CUDA_ERROR_NOT_SUPPORTED};
  return std::none_of(std::begin(kHarmless), std::end(kHarmless),
                      [&](CUresult result) { return result == cu_result; });
}

Error DriverError(Op op, int cu_result, const std::string& name, const std::string& text) {
  Error error;
  error.code = Code::kUnknown;
  error.domain = Domain::kCuda;
  error.raw = cu_result;
  error.message = (name.empty() ? "CUresult " + std::to_string(cu_result) : name) + ": " + text;
  for (const CodeRow& row : kCodes) {
    if (row.result == cu_result) error.code = row.code;
  }
  for (const HintRow& row : kHints) {
    if (row.op == op && row.result == cu_result) error.hint = row.hint;
  }
  return error;
}

}  // namespace stasis::device::cuda
