// Legacy IPC: handles are bytes that identify a file kept by the broker.

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "api.h"
#include "context.h"
#include "driver.h"
#include "event.h"

namespace softgpu::api {

using Lock = std::lock_guard<std::mutex>;

namespace {

constexpr uint64_t kMemoryMagic = 0x4D454D47504753;  // "SGPGMEM"
constexpr uint64_t kEventMagic = 0x54564547504753;   // "SGPGEVT"

struct IpcHandle {
  uint64_t magic;
  uint64_t key;
  uint64_t token;
  uint64_t bytes;
  int32_t exporter;
  int32_t reserved;
};
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle));

template <class T>
void Fill(T* handle, const IpcHandle& content) {
  memset(handle, 0, sizeof(*handle));
  memcpy(handle, &content, sizeof(content));
}

template <class T>
IpcHandle Read(const T& handle) {
  IpcHandle content;
  memcpy(&content, &handle, sizeof(content));
  return content;
}

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr ptr) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(ptr);
  // Memory from cuMemCreate or a pool, and imported memory, cannot be shared by legacy IPC handles.
  if (handle == nullptr || range == nullptr || range->kind != RangeKind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const KeepTicket& ticket = range->memory->ticket;
  Fill(handle, {kMemoryMagic, ticket.key, ticket.token, range->bytes, getpid(), 0});
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned int flags) {
  return cuIpcOpenMemHandle_v2(ptr, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned int flags) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  IpcHandle content = Read(handle);
  if (ptr == nullptr || flags > CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
      content.magic != kMemoryMagic) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The exporting process may not open its own handle.
  if (content.exporter == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  Fd file;
  if (driver().broker.Fetch({content.key, content.token}, &file) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct stat s;
  int physical = DeviceOfFile(file.get());
  if (fstat(file.get(), &s) != 0 || physical < 0) return CUDA_ERROR_INVALID_VALUE;
  int ordinal = context->ordinal;
  for (int i = 0; i < driver().device_count; ++i) {
    if (driver().devices[i].physical == physical) ordinal = i;
  }
  Memory* memory = nullptr;
  CUresult r =
      driver().memory.Adopt(MemoryKind::kPlain, ordinal, file, uint64_t(s.st_size), &memory);
  if (r != CUDA_SUCCESS) return r;
  memory->imported_ipc = true;
  driver().memory.AddRange({RangeKind::kIpc, memory->home, content.bytes, memory, context});
  *ptr = memory->home;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
  Context* owner = nullptr;
  {
    Lock lock(driver().mutex);
    Range* range = driver().memory.At(ptr);
    if (range == nullptr || range->kind != RangeKind::kIpc) return CUDA_ERROR_INVALID_VALUE;
    owner = range->context;
  }
  WaitForContext(owner);
  Lock lock(driver().mutex);
  Range* range = driver().memory.At(ptr);
  if (range == nullptr || range->kind != RangeKind::kIpc) return CUDA_ERROR_INVALID_VALUE;
  Memory* memory = range->memory;
  driver().memory.RemoveRange(ptr);
  driver().memory.Destroy(memory);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  Lock lock(driver().mutex);
  auto it = driver().events.find(reinterpret_cast<Event*>(event_handle));
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (it == driver().events.end()) return CUDA_ERROR_INVALID_HANDLE;
  Event* event = it->second.get();
  if (event->shared == nullptr || event->imported) return CUDA_ERROR_INVALID_HANDLE;
  const KeepTicket& ticket = event->kept;
  Fill(handle, {kEventMagic, ticket.key, ticket.token, kPage, getpid(), 0});
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  IpcHandle content = Read(handle);
  if (out == nullptr || content.magic != kEventMagic) return CUDA_ERROR_INVALID_VALUE;
  if (content.exporter == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  Fd file;
  if (driver().broker.Fetch({content.key, content.token}, &file) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto event = std::make_shared<Event>();
  event->context = context;
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->imported = true;
  if (CUresult r = MapSharedEvent(file, event.get()); r != CUDA_SUCCESS) return r;
  *out = reinterpret_cast<CUevent>(event.get());
  driver().events.emplace(event.get(), event);
  return CUDA_SUCCESS;
}

}  // namespace softgpu::api
