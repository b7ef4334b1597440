// Contexts, and the current context of each thread.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "base.h"
#include "memory.h"
#include "stream.h"

namespace softgpu {

struct Context {
  int ordinal = 0;
  unsigned flags = 0;
  bool primary = false;
  unsigned api_version = 3020;
  uint64_t id = 0;
  size_t limits[CU_LIMIT_MAX] = {};
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  Memory* control = nullptr;
  std::shared_ptr<Stream> legacy;
  std::map<pid_t, std::shared_ptr<Stream>> per_thread;
  std::set<Stream*> streams;  // all streams of this context, including the default streams
  std::set<Context*> peers;   // contexts whose memory this one may access
};

// All functions below require driver().mutex. CurrentContext creates the primary context of the
// thread's device if the program uses HIP.
CUresult CurrentContext(Context** out);
// Returns the primary context of a device, which is created if necessary.
CUresult PrimaryContext(int ordinal, Context** out);
// Finds a context by its handle; null means the current one.
CUresult FindContext(CUcontext handle, Context** out);
CUresult NewContext(int ordinal, unsigned flags, bool primary, Context** out);
std::shared_ptr<Stream> NewStream(Context* context, unsigned flags, int priority);
// Frees the context and everything in it. Its work must be finished.
void DestroyContext(Context* context);
// Frees the memory of a context. Its work must be finished.
void FreeContextMemory(Context* context);
void FreeHostRange(const Range& range);
inline CUcontext Handle(Context* context) { return reinterpret_cast<CUcontext>(context); }

// Selects the calling thread's device, whose primary context CurrentContext creates. For HIP.
void SelectDevice(int ordinal);

// Waits for the context's work, without holding the mutex.
void WaitForContext(Context* context);

}  // namespace softgpu
