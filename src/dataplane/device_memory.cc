#include "dataplane/device_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace stasis::dataplane {
namespace {

using namespace stasis::cuda;  // NOLINT: the driver's own names

constexpr uint64_t kBallastPiece = 256u << 20;

Error NotShared(const std::string& why) {
  Error error;
  error.code = Code::kInvalidArgument;
  error.message = "a descriptor from the program is not the announced GPU memory: " + why;
  return error;
}

}  // namespace

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

Status DeviceMemory::Reserve(uint64_t bytes) {
  STASIS_GPU(gpu_, cuMemAddressReserve, (&base_, bytes, gpu_.granularity(), 0, 0));
  reserved_ = bytes;
  return {};
}

Status DeviceMemory::CheckSize(uint64_t bytes) const {
  if (bytes == 0 || bytes % gpu_.granularity() != 0 || bytes > reserved_ - mapped_) {
    return Fail(Code::kInvalidArgument, "an allocation of " + std::to_string(bytes) +
                                            " bytes does not match the announced sizes");
  }
  return {};
}

Status DeviceMemory::Import(int fd, uint64_t bytes) {
  STASIS_TRY(CheckSize(bytes));
  // Do not let the driver interpret an arbitrary socket or pipe.
  struct stat st;
  if (::fstat(fd, &st) != 0) return FailErrno(errno, "stat a descriptor");
  // HIP exports memory as a DMA buffer, whose mode has no file type.
  if (!S_ISCHR(st.st_mode) && !S_ISREG(st.st_mode) && (st.st_mode & S_IFMT) != 0) {
    return Fail(NotShared("it is neither a device nor a file"));
  }
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = gpu_.fn().cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return Fail(gpu_.MakeError(result, "cuMemImportFromShareableHandle"));
  }
  if (result != CUDA_SUCCESS) {
    Error error = NotShared(gpu_.MakeError(result, "cuMemImportFromShareableHandle").message);
    error.domain = Domain::kCuda;
    error.raw = result;
    return Fail(std::move(error));
  }
  CUmemAllocationProp properties = {};
  result = gpu_.fn().cuMemGetAllocationPropertiesFromHandle(&properties, handle);
  const bool here = result == CUDA_SUCCESS &&
                    properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                    properties.location.id == gpu_.device();
  if (!here) {
    gpu_.fn().cuMemRelease(handle);
    return Fail(NotShared("it is not on this GPU"));
  }
  return Append(handle, bytes);
}

Status DeviceMemory::Create(uint64_t bytes) {
  STASIS_TRY(CheckSize(bytes));
  CUmemAllocationProp properties = gpu_.Properties();
  CUmemGenericAllocationHandle handle = 0;
  STASIS_GPU(gpu_, cuMemCreate, (&handle, bytes, &properties, 0));
  return Append(handle, bytes);
}

// A handle can only be mapped as a whole. The driver rejects a size that differs from the handle's,
// which exposes a program that announced a wrong one.
Status DeviceMemory::Append(CUmemGenericAllocationHandle handle, uint64_t bytes) {
  CUresult result = gpu_.fn().cuMemMap(base_ + mapped_, bytes, 0, handle, 0);
  if (result != CUDA_SUCCESS) {
    gpu_.fn().cuMemRelease(handle);
    Error error = gpu_.MakeError(result, "cuMemMap");
    if (result == CUDA_ERROR_INVALID_VALUE) {
      error.message = NotShared("it cannot be mapped with " + std::to_string(bytes) + " bytes (" +
                                error.message + ")")
                          .message;
    }
    return Fail(std::move(error));
  }
  handles_.push_back(handle);
  mapped_ += bytes;
  return {};
}

Status DeviceMemory::Open() {
  if (mapped_ == 0) return {};
  CUmemAccessDesc access = {};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu_.device()};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  STASIS_GPU(gpu_, cuMemSetAccess, (base_, mapped_, &access, 1));
  return {};
}

Result<UniqueFd> DeviceMemory::Export(size_t index) const {
  int fd = -1;
  STASIS_GPU(gpu_, cuMemExportToShareableHandle,
             (&fd, handles_.at(index), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

Status DeviceMemory::CreateBallast(uint64_t bytes) {
  CUmemAllocationProp properties = gpu_.Properties();
  for (uint64_t left = RoundUp(bytes, gpu_.granularity()); left > 0;) {
    const uint64_t piece = std::min(left, RoundUp(kBallastPiece, gpu_.granularity()));
    CUmemGenericAllocationHandle handle = 0;
    STASIS_GPU(gpu_, cuMemCreate, (&handle, piece, &properties, 0));
    ballast_.push_back(handle);
    left -= piece;
  }
  return {};
}

Status DeviceMemory::FreeBallast() {
  while (!ballast_.empty()) {
    CUmemGenericAllocationHandle handle = ballast_.back();
    ballast_.pop_back();
    STASIS_GPU(gpu_, cuMemRelease, (handle));
  }
  return {};
}

Status DeviceMemory::Free() {
  Status first;
  auto note = [&](CUresult result, const char* call) {
    if (result != CUDA_SUCCESS && first) first = Fail(gpu_.MakeError(result, call));
  };
  if (mapped_ > 0) note(gpu_.fn().cuMemUnmap(base_, mapped_), "cuMemUnmap");
  for (auto* list : {&handles_, &ballast_}) {
    for (auto handle : *list) note(gpu_.fn().cuMemRelease(handle), "cuMemRelease");
    list->clear();
  }
  if (reserved_ > 0) note(gpu_.fn().cuMemAddressFree(base_, reserved_), "cuMemAddressFree");
  mapped_ = reserved_ = 0;
  return first;
}

}  // namespace stasis::dataplane
