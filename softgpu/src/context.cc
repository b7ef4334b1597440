#include "context.h"

#include <vector>

#include "api.h"
#include "driver.h"
#include "event.h"
#include "module.h"
#include "pool.h"

namespace softgpu {
namespace {

thread_local std::vector<Context*> t_stack;
thread_local int t_device = 0;

constexpr size_t kDefaultStackBytes = 1024;

bool Exists(Context* context) { return driver().contexts.contains(context); }

// On real GPUs about half of a context's memory is the stack pool, whose size follows from the
// stack limit.
uint64_t ControlBytes(size_t stack_bytes) {
  uint64_t half = driver().broker.config().context_bytes / 2;
  return std::max<uint64_t>(RoundUp(half + half * stack_bytes / kDefaultStackBytes, kPage), kPage);
}

CUresult ResizeControl(Context* context, size_t stack_bytes) {
  Memory* bigger = nullptr;
  if (context->control != nullptr && ControlBytes(stack_bytes) <= context->control->bytes) {
    driver().memory.Destroy(std::exchange(context->control, nullptr));
  }
  CUresult r = driver().memory.Create(MemoryKind::kControl, context->ordinal,
                                      ControlBytes(stack_bytes), false, &bigger);
  if (r != CUDA_SUCCESS) return r;
  if (context->control != nullptr) driver().memory.Destroy(context->control);
  context->control = bigger;
  return CUDA_SUCCESS;
}

// Makes the primary context current if the thread has no current context. A HIP program always has
// one.
CUresult MakePrimaryCurrent() {
  while (!t_stack.empty() && !Exists(t_stack.back())) t_stack.pop_back();
  if (!t_stack.empty()) return CUDA_SUCCESS;
  Context* primary = nullptr;
  if (CUresult r = PrimaryContext(t_device, &primary); r != CUDA_SUCCESS) return r;
  t_stack.push_back(primary);
  return CUDA_SUCCESS;
}

}  // namespace

void SelectDevice(int ordinal) {
  t_device = ordinal;
  t_stack.clear();
}

CUresult PrimaryContext(int ordinal, Context** out) {
  if (ordinal < 0 || ordinal >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
  Device& device = driver().devices[ordinal];
  if (device.primary == nullptr) {
    Context* made = nullptr;
    CUresult r = NewContext(ordinal, device.primary_flags, true, &made);
    if (r != CUDA_SUCCESS) return r;
    device.primary = Handle(made);
  }
  *out = reinterpret_cast<Context*>(device.primary);
  return CUDA_SUCCESS;
}

CUresult CurrentContext(Context** out) {
  if (driver().face.load() == Face::kHip) {
    if (CUresult r = MakePrimaryCurrent(); r != CUDA_SUCCESS) return r;
  }
  if (t_stack.empty() || t_stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!Exists(t_stack.back())) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *out = t_stack.back();
  return CUDA_SUCCESS;
}

CUresult FindContext(CUcontext handle, Context** out) {
  if (handle == nullptr) return CurrentContext(out);
  auto* context = reinterpret_cast<Context*>(handle);
  if (!Exists(context)) return CUDA_ERROR_INVALID_CONTEXT;
  *out = context;
  return CUDA_SUCCESS;
}

CUresult NewContext(int ordinal, unsigned flags, bool primary, Context** out) {
  auto made = std::make_unique<Context>();
  Context* context = made.get();
  context->ordinal = ordinal;
  context->flags = flags;
  context->primary = primary;
  context->id = driver().next_id++;
  context->limits[CU_LIMIT_STACK_SIZE] = kDefaultStackBytes;
  context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
  context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
  context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  CUresult r = ResizeControl(context, kDefaultStackBytes);
  if (r != CUDA_SUCCESS) return r;
  driver().contexts.emplace(context, std::move(made));
  context->legacy = NewStream(context, 0, 0);
  context->legacy->legacy = true;
  *out = context;
  return CUDA_SUCCESS;
}

std::shared_ptr<Stream> NewStream(Context* context, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = driver().next_id++;
  context->streams.insert(stream.get());
  driver().streams.emplace(stream.get(), stream);
  return stream;
}

void WaitForContext(Context* context) {
  std::vector<Ticket> work;
  {
    std::lock_guard lock(driver().mutex);
    if (!Exists(context)) return;
    work = AllWork(context);
  }
  for (const Ticket& ticket : work) ticket.Wait();
}

void DestroyContext(Context* context) {
  for (Stream* stream : std::set<Stream*>(context->streams)) driver().streams.erase(stream);
  std::erase_if(driver().events, [&](auto& item) { return item.second->context == context; });
  UnloadModules(context);
  FreeContextMemory(context);
  if (context->control != nullptr) driver().memory.Destroy(context->control);
  for (auto& [other, owned] : driver().contexts) other->peers.erase(context);
  if (context->primary) {
    Device& device = driver().devices[context->ordinal];
    device.primary = nullptr;
    device.primary_references = 0;
  }
  const int ordinal = context->ordinal;
  driver().contexts.erase(context);
  for (auto& [other, owned] : driver().contexts) {
    if (other->ordinal == ordinal) return;
  }
  EndPools(ordinal);
}

namespace api {

using Lock = std::lock_guard<std::mutex>;

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  Lock lock(driver().mutex);
  if (context == nullptr || (flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
  Context* made = nullptr;
  if (CUresult r = NewContext(device, flags, false, &made); r != CUDA_SUCCESS) return r;
  t_stack.push_back(made);
  *context = Handle(made);
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int num_params,
                        unsigned int flags, CUdevice device) {
  if (num_params != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned int flags,
                        CUdevice device) {
  if (params != nullptr && (params->numExecAffinityParams != 0 || params->cigParams != nullptr)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  Context* context = nullptr;
  {
    Lock lock(driver().mutex);
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult r = FindContext(handle, &context); r != CUDA_SUCCESS) return r;
    if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  }
  WaitForContext(context);
  Lock lock(driver().mutex);
  if (!Exists(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!t_stack.empty() && t_stack.back() == context) t_stack.pop_back();
  DestroyContext(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult r = FindContext(handle, &context); r != CUDA_SUCCESS) return r;
  t_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  if (t_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = Handle(t_stack.back());
  t_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (handle == nullptr) {
    if (!t_stack.empty()) t_stack.pop_back();
    return CUDA_SUCCESS;
  }
  if (CUresult r = FindContext(handle, &context); r != CUDA_SUCCESS) return r;
  if (t_stack.empty()) {
    t_stack.push_back(context);
  } else {
    t_stack.back() = context;
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = t_stack.empty() ? nullptr : Handle(t_stack.back());
  return CUDA_SUCCESS;
}

namespace {

// Stores a member of the context in `*out`. A null handle means the current context.
template <class T, class U>
CUresult GetMember(CUcontext handle, T* out, U Context::*member) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = FindContext(handle, &context); r != CUDA_SUCCESS) return r;
  *out = context->*member;
  return CUDA_SUCCESS;
}

template <class T>
CUresult SetMember(T Context::*member, T value) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  context->*member = value;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  return GetMember(handle, device, &Context::ordinal);
}

CUresult cuCtxGetFlags(unsigned int* flags) { return GetMember(nullptr, flags, &Context::flags); }

CUresult cuCtxSetFlags(unsigned int flags) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return GetMember(handle, id, &Context::id);
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  return GetMember(handle, version, &Context::api_version);
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = context->limits[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  Context* context = nullptr;
  {
    Lock lock(driver().mutex);
    if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
    if (limit > CU_LIMIT_MAX_L2_FETCH_GRANULARITY) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
  if (limit == CU_LIMIT_STACK_SIZE) WaitForContext(context);
  Lock lock(driver().mutex);
  if (limit == CU_LIMIT_STACK_SIZE) {
    if (value > 512 * 1024) return CUDA_ERROR_INVALID_VALUE;
    value = RoundUp(value == 0 ? 1 : value, 16);
    if (CUresult r = ResizeControl(context, value); r != CUDA_SUCCESS) return r;
  }
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return GetMember(nullptr, config, &Context::cache);
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) { return SetMember(&Context::cache, config); }

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return GetMember(nullptr, config, &Context::shared_config);
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return SetMember(&Context::shared_config, config);
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam*, CUexecAffinityType) {
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuCtxResetPersistingL2Cache() { return CUDA_SUCCESS; }

CUresult cuCtxAttach(CUcontext*, unsigned int) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuCtxDetach(CUcontext) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
  Lock lock(driver().mutex);
  Context *context = nullptr, *peer = nullptr;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  if (handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult r = FindContext(handle, &peer); r != CUDA_SUCCESS) return r;
  if (peer->ordinal == context->ordinal) return CUDA_ERROR_INVALID_DEVICE;
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  Lock lock(driver().mutex);
  Context *context = nullptr, *peer = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  if (handle == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult r = FindContext(handle, &peer); r != CUDA_SUCCESS) return r;
  return context->peers.erase(peer) == 1 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  Context* context = nullptr;
  {
    Lock lock(driver().mutex);
    if (CUresult r = FindContext(handle, &context); r != CUDA_SUCCESS) return r;
    for (Stream* stream : context->streams) {
      if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  WaitForContext(context);
  TrimPools();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
  Lock lock(driver().mutex);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* primary = nullptr;
  if (CUresult r = PrimaryContext(device, &primary); r != CUDA_SUCCESS) return r;
  ++driver().devices[device].primary_references;
  *handle = Handle(primary);
  return CUDA_SUCCESS;
}

namespace {

CUresult EndPrimary(CUdevice device, bool all) {
  Context* context = nullptr;
  {
    Lock lock(driver().mutex);
    if (device < 0 || device >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
    Device& d = driver().devices[device];
    if (d.primary == nullptr) return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (!all && --d.primary_references > 0) return CUDA_SUCCESS;
    context = reinterpret_cast<Context*>(d.primary);
  }
  WaitForContext(context);
  Lock lock(driver().mutex);
  if (Exists(context)) DestroyContext(context);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return EndPrimary(device, false); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return EndPrimary(device, true); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  Lock lock(driver().mutex);
  if (device < 0 || device >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
  Device& d = driver().devices[device];
  d.primary_flags = flags;
  if (d.primary != nullptr) reinterpret_cast<Context*>(d.primary)->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  Lock lock(driver().mutex);
  if (device < 0 || device >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
  Device& d = driver().devices[device];
  if (flags != nullptr) *flags = d.primary_flags;
  if (active != nullptr) *active = d.primary != nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace softgpu
