// Function look-ups: the program's calls of dlsym, dlvsym and cuGetProcAddress, and the agent's own
// search for functions of the driver, HIP and libc.

#include <dlfcn.h>
#include <string.h>

#include "abi/hip/as_driver.h"
#include "agent/blockers.h"
#include "agent/cuda/hooks.h"
#include "agent/cuda/real.h"
#include "agent/hip/process.h"
#include "agent/libc_symbol.h"

// SAFETY: for RTLD_NEXT the real dlsym inspects its return address to find the caller. Both hooks
// therefore choose a target, restore all argument registers, and jump to it. The target is the real
// function or, for names that the agent hooks, stasis_dlsym or stasis_dlvsym. Registers that hold
// no argument need not be saved.
#if defined(__x86_64__)
asm(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  endbr64
  pushq %rdi
  pushq %rsi
  subq $8, %rsp
  call stasis_route_dlsym
  addq $8, %rsp
  popq %rsi
  popq %rdi
  testq %rax, %rax
  je stasis_dlsym
  jmp *%rax
  .size dlsym, .-dlsym

  .globl dlvsym
  .type dlvsym, @function
dlvsym:
  endbr64
  pushq %rdi
  pushq %rsi
  pushq %rdx
  call stasis_route_dlvsym
  popq %rdx
  popq %rsi
  popq %rdi
  testq %rax, %rax
  je stasis_dlvsym
  jmp *%rax
  .size dlvsym, .-dlvsym
)");
#elif defined(__aarch64__)
// The return address is in x30. x16 may hold a target that begins with `bti c`; the assembler
// writes that instruction as `hint #34` for processors without it.
asm(R"(
  .text
  .globl dlsym
  .type dlsym, %function
dlsym:
  hint #34
  stp x29, x30, [sp, #-32]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  bl stasis_route_dlsym
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  cbz x16, 1f
  br x16
1:
  b stasis_dlsym
  .size dlsym, .-dlsym

  .globl dlvsym
  .type dlvsym, %function
dlvsym:
  hint #34
  stp x29, x30, [sp, #-48]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  str x2, [sp, #32]
  bl stasis_route_dlvsym
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldr x2, [sp, #32]
  ldp x29, x30, [sp], #48
  cbz x16, 1f
  br x16
1:
  b stasis_dlvsym
  .size dlvsym, .-dlvsym
)");
#else
#error "dlsym and dlvsym are missing for this processor"
#endif

extern "C" {
void* dlsym(void* handle, const char* name) noexcept;
void* dlvsym(void* handle, const char* name, const char* version) noexcept;
}

namespace stasis::agent {

// Every call reads this table, so its cache lines must not be shared with data that is written.
alignas(64) std::atomic<void*> g_real[kFunctionCount];

namespace {

using Dlsym = void* (*)(void*, const char*);
using Dlvsym = void* (*)(void*, const char*, const char*);
using Dlopen = void* (*)(const char*, int);

template <class F>
F LibcFunction(std::atomic<void*>* cache, const char* name) {
  void* address = cache->load(std::memory_order_acquire);
  if (address == nullptr) {
    address = FindLibcSymbol(name);
    cache->store(address, std::memory_order_release);
  }
  return reinterpret_cast<F>(address);
}

Dlsym RealDlsym() {
  static std::atomic<void*> cache;
  return LibcFunction<Dlsym>(&cache, "dlsym");
}
Dlvsym RealDlvsym() {
  static std::atomic<void*> cache;
  return LibcFunction<Dlvsym>(&cache, "dlvsym");
}
Dlopen RealDlopen() {
  static std::atomic<void*> cache;
  return LibcFunction<Dlopen>(&cache, "dlopen");
}

// Clears the error of the agent's own look-ups, which the program must not get from dlerror().
void ForgetLookupError() {
  static std::atomic<void*> cache;
  if (auto* error = LibcFunction<char* (*)()>(&cache, "dlerror")) error();
}

bool IsDriverName(const char* name) {
  const bool cuda = name[0] == 'c' && name[1] == 'u';
  const bool hip = name[0] == 'h' && name[1] == 'i' && name[2] == 'p';
  const char behind = cuda ? name[2] : hip ? name[3] : '\0';
  return behind >= 'A' && behind <= 'Z';
}

// Two open-addressing hash tables: one of exported names, built by the compiler, and one of
// addresses of the driver's functions and the agent's hooks.
//
// No lock guards them. A look-up may come from a constructor that dlopen runs under the loader's
// lock, which Bind needs too, so a lock of the agent could deadlock. A forked child may also
// inherit a half-filled table. Therefore any number of threads may fill the second table at once,
// each with all entries: an entry is one word, and a second writer of the same entry finds it
// present.
constexpr uint32_t kBuckets = 4096;
static_assert(kFunctionCount * 3 < kBuckets, "the hash tables are too full");

constexpr const char* kNames[kFunctionCount] = {
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) #symbol,
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments) #symbol, #symbol "_ptsz",
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments) #symbol, #symbol "_ptds",
#include "abi/cuda/driver_functions.def"
#define STASIS_HOOK_RAW(symbol, count) #symbol,
#include "agent/cuda/hooks.def"
#define STASIS_HIP_SYMBOL(symbol, kind) #symbol,
#include "agent/hip/symbols.def"
};

constexpr uint32_t HashName(const char* name) {
  uint32_t h = 2166136261u;
  for (; *name != '\0'; ++name) h = (h ^ static_cast<unsigned char>(*name)) * 16777619u;
  return h % kBuckets;
}
uint32_t HashAddress(const void* address) {
  return uint32_t((reinterpret_cast<uintptr_t>(address) >> 4) * 2654435761u) % kBuckets;
}

struct Names {
  uint16_t index[kBuckets] = {};  // the function's index + 1; 0: empty
  constexpr Names() {
    for (int i = 0; i < kFunctionCount; ++i) {
      uint32_t at = HashName(kNames[i]);
      while (index[at] != 0) at = (at + 1) % kBuckets;
      index[at] = uint16_t(i + 1);
    }
  }
};
constexpr Names kByName;

// 2 * index + 1 means the driver's function, 2 * index + 2 the agent's hook.
std::atomic<uint32_t> g_by_address[kBuckets];
std::atomic<bool> g_bound{false};
std::atomic<bool> g_is_hip{false};

// Only functions of the library that the process uses are hooked.
bool IsActive(int index) { return (index >= kFirstHip) == IsHip(); }

int IndexOf(const char* name) {
  CompleteFunctionTable();
  for (uint32_t at = HashName(name); kByName.index[at] != 0; at = (at + 1) % kBuckets) {
    int index = kByName.index[at] - 1;
    if (strcmp(kNames[index], name) == 0) return index;
  }
  return -1;
}

bool HasHook(const char* name) {
  int index = IndexOf(name);
  return index >= 0 && g_functions[index].ours != nullptr;
}

bool HasVitalHook(const char* name) {
  int index = IndexOf(name);
  return index >= 0 && g_functions[index].ours != nullptr && g_functions[index].vital;
}

void* AddressOf(uint32_t entry) {
  const uint32_t index = (entry - 1) / 2;
  return entry % 2 == 1 ? g_real[index].load(std::memory_order_acquire) : g_functions[index].ours;
}

// If several functions have one address, the first entry wins.
void EnterAddress(uint32_t entry) {
  const void* address = AddressOf(entry);
  for (uint32_t at = HashAddress(address);; at = (at + 1) % kBuckets) {
    uint32_t there = 0;
    if (g_by_address[at].compare_exchange_strong(there, entry) || AddressOf(there) == address) {
      return;
    }
  }
}

// Returns the agent's hook for the address of a driver's function or of the hook itself, or null if
// the address is neither.
void* OursFor(void* address) {
  for (uint32_t at = HashAddress(address);; at = (at + 1) % kBuckets) {
    const uint32_t there = g_by_address[at].load(std::memory_order_acquire);
    if (there == 0) return nullptr;
    if (AddressOf(there) == address) return g_functions[(there - 1) / 2].ours;
  }
}

bool IsOurs(void* address) {
  CompleteFunctionTable();
  for (const Function& f : g_functions) {
    if (f.ours == address) return true;
  }
  return false;
}

int NotFound() { return CUDA_ERROR_NOT_FOUND; }

}  // namespace

bool IsHip() { return g_is_hip.load(std::memory_order_acquire); }

namespace {

// RTLD_NOLOAD: the agent uses the libraries that the program has loaded and never loads one.
void* Loaded(const char* name) { return RealDlopen()(name, RTLD_LAZY | RTLD_NOLOAD); }

void* LoadedHip() {
  for (const char* name : hip::as_driver::kLibraries) {
    if (void* library = Loaded(name)) return library;
  }
  return nullptr;
}

// For each function of the driver, the index of the first function of HIP that serves as it, or 0
// if there is none.
struct HipFor {
  uint16_t index[kFirstHip] = {};
  constexpr HipFor() {
    auto set = [this](Index driver, Index hip) {
      if (index[driver] == 0) index[driver] = uint16_t(hip);
    };
#define STASIS_HIP_SAME(symbol, driver) set(k_##driver, k_##symbol);
#define STASIS_HIP_SAME_SPT(symbol, driver) \
  set(k_##driver, k_##symbol);              \
  set(k_##driver##_ptsz, k_##symbol##_spt);
#include "abi/hip/functions.def"
  }
};
constexpr HipFor kHipFor;

void* AdapterOf(int index) {
  switch (index) {
#define STASIS_HIP_CASE(name) \
  case k_##name:              \
    return reinterpret_cast<void*>(&hip::as_driver::adapter::name);
    STASIS_HIP_ADAPTERS(STASIS_HIP_CASE)
#undef STASIS_HIP_CASE
    default:
      return nullptr;
  }
}

void* FindReal(int index, void* cuda, void* hip) {
  if (index >= kFirstHip) return hip == nullptr ? nullptr : RealDlsym()(hip, kNames[index]);
  if (cuda != nullptr) return RealDlsym()(cuda, kNames[index]);
  if (!IsHip()) return nullptr;
  if (void* adapter = AdapterOf(index)) return adapter;
  const int other = kHipFor.index[index];
  return other == 0 ? nullptr : RealDlsym()(hip, kNames[other]);
}

}  // namespace

bool Bind() {
  if (g_bound.load(std::memory_order_acquire)) return true;
  CompleteFunctionTable();
  void* cuda = Loaded("libcuda.so.1");
  void* hip = LoadedHip();
  if (cuda == nullptr && hip == nullptr) {
    ForgetLookupError();
    return false;
  }
  const bool known = hip != nullptr && hip::as_driver::Resolve(hip, RealDlsym());
  g_is_hip.store(cuda == nullptr && known, std::memory_order_release);
  for (int i = 0; i < kFunctionCount; ++i) {
    void* address = FindReal(i, cuda, hip);
    g_real[i].store(address != nullptr ? address : reinterpret_cast<void*>(&NotFound),
                    std::memory_order_release);
    if (g_functions[i].ours == nullptr || !IsActive(i)) continue;
    if (address != nullptr) EnterAddress(uint32_t(2 * i + 1));
    EnterAddress(uint32_t(2 * i + 2));
  }
  if (!IsHip()) PassHipThrough();
  if (!IsHip() && hip != nullptr) {
    NoteBlocker(agent_protocol::kBlockerUnknownFunction,
                known ? "HIP in a program that uses CUDA too" : "an old version of HIP");
  }
  ForgetLookupError();
  g_bound.store(true, std::memory_order_release);
  return true;
}

void* Resolve(Index index) {
  if (!Bind()) {
    // The program has no driver, or has one in another namespace (dlmopen).
    return reinterpret_cast<void*>(&NotFound);
  }
  return g_real[index].load(std::memory_order_acquire);
}

bool IsVital(const char* name) {
  if (HasVitalHook(name)) return true;
  // The name may be a base name, for example cuMemAlloc for cuMemAlloc_v2.
  size_t length = strlen(name);
  if (length > 96) return false;
  char versioned[104];
  memcpy(versioned, name, length);
  for (int version = 2; version <= 4; ++version) {
    versioned[length] = '_';
    versioned[length + 1] = 'v';
    versioned[length + 2] = char('0' + version);
    versioned[length + 3] = '\0';
    if (HasVitalHook(versioned)) return true;
  }
  return false;
}

void* Substitute(const char* name, void* address) {
  if (address == nullptr || !Bind()) return address;
  int index = IndexOf(name);
  if (index >= 0 && g_functions[index].ours != nullptr && IsActive(index) &&
      g_real[index].load(std::memory_order_relaxed) == address) {
    return g_functions[index].ours;
  }
  if (void* ours = OursFor(address)) return ours;
  // The address belongs to an unknown version of the function, or to another copy of the driver.
  // Calls to it would bypass the gate.
  if (IsVital(name)) NoteBlocker(agent_protocol::kBlockerUnknownFunction, name);
  return address;
}

}  // namespace stasis::agent

using namespace stasis::agent;  // NOLINT

// Returns the real function for a look-up, or null if the agent answers it.
extern "C" __attribute__((visibility("hidden"))) void* stasis_route_dlsym(void* handle,
                                                                          const char* name) {
  bool ours = name != nullptr && handle != RTLD_NEXT &&
              ((IsDriverName(name) && HasHook(name)) || strcmp(name, "dlsym") == 0 ||
               strcmp(name, "dlvsym") == 0);
  return ours ? nullptr : reinterpret_cast<void*>(RealDlsym());
}

extern "C" __attribute__((visibility("hidden"))) void* stasis_route_dlvsym(void* handle,
                                                                           const char* name,
                                                                           const char*) {
  bool ours = name != nullptr && handle != RTLD_NEXT && IsDriverName(name) && HasHook(name);
  return ours ? nullptr : reinterpret_cast<void*>(RealDlvsym());
}

extern "C" __attribute__((visibility("hidden"))) void* stasis_dlsym(void* handle,
                                                                    const char* name) {
  void* found = RealDlsym()(handle, name);
  if (found == nullptr) return nullptr;
  if (!IsDriverName(name)) {
    if (found == reinterpret_cast<void*>(RealDlsym())) return reinterpret_cast<void*>(&dlsym);
    if (found == reinterpret_cast<void*>(RealDlvsym())) return reinterpret_cast<void*>(&dlvsym);
    return found;
  }
  if (IsOurs(found)) {
    // The caller searched all libraries, and the agent came first. RTLD_NEXT starts after the
    // agent, so it returns what the program would get without the agent: NULL if there is no
    // driver.
    void* next = RealDlsym()(RTLD_NEXT, name);
    return next == nullptr ? nullptr : Substitute(name, next);
  }
  return Substitute(name, found);
}

extern "C" __attribute__((visibility("hidden"))) void* stasis_dlvsym(void* handle, const char* name,
                                                                     const char* version) {
  return Substitute(name, RealDlvsym()(handle, name, version));
}

namespace stasis::agent {

STASIS_EXPORT CUresult cuGetProcAddress(const char* symbol, void** pfn, int version,
                                        cuuint64_t flags) {
  CUresult r = real::cuGetProcAddress(symbol, pfn, version, flags);
  if (r == CUDA_SUCCESS) *pfn = Substitute(symbol, *pfn);
  return r;
}

STASIS_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int version,
                                           cuuint64_t flags,
                                           CUdriverProcAddressQueryResult* status) {
  CUresult r = real::cuGetProcAddress_v2(symbol, pfn, version, flags, status);
  if (r == CUDA_SUCCESS) *pfn = Substitute(symbol, *pfn);
  return r;
}

}  // namespace stasis::agent
