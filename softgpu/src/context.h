// Contexts, and which one is current on a thread.
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
  std::set<Stream*> streams;  // every one of this context, also the two kinds above
  std::set<Context*> peers;   // whose memory it may reach
};

// All under driver().mutex.
CUresult CurrentContext(Context** out);
// A context by its handle; null means the current one.
CUresult FindContext(CUcontext handle, Context** out);
CUresult NewContext(int ordinal, unsigned flags, bool primary, Context** out);
std::shared_ptr<Stream> NewStream(Context* context, unsigned flags, int priority);
// Frees all that belongs to it. The caller has waited for its work.
void DestroyContext(Context* context);
// What a context owns; called with its work done.
void FreeContextMemory(Context* context);
void FreeHostRange(const Range& range);
inline CUcontext Handle(Context* context) { return reinterpret_cast<CUcontext>(context); }

// Waits for the context's work, without the mutex.
void WaitForContext(Context* context);

}  // namespace softgpu
