#include "agent/cuda/visible.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/control.h"
#include "agent/futex.h"
#include "agent/visible_list.h"

extern char** environ;

namespace stasis::agent {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES=";
constexpr size_t kVariableBytes = sizeof(kVariable) - 1;
constexpr char kGpusFolder[] = "/proc/driver/nvidia/gpus";

Mutex g_mutex;                         // held while the variable is changed
std::atomic<int> g_holder{0};          // the thread that holds it
std::atomic<int> g_visible_count{-1};  // -1: the program sees all GPUs

// The program's entry, while g_entry is in its place.
std::atomic<char*> g_own_entry{nullptr};
// The entry that replaces the program's. It stays in memory, because another thread may read it at
// any time.
char g_entry[kVariableBytes + kListBytes];

// Returns the place of the first entry of the environment that `is` holds for, or null.
template <class F>
char** FindEntry(F is) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (is(*entry)) return entry;
  }
  return nullptr;
}

void RestoreEntry() {
  char* own = g_own_entry.exchange(nullptr);
  if (own == nullptr) return;
  // The program may have moved the environment or replaced the entry meanwhile.
  char** entry = FindEntry([](const char* text) { return text == g_entry; });
  if (entry != nullptr) __atomic_store_n(entry, own, __ATOMIC_RELEASE);
}

// Programs with the CUDA runtime do not work with hidden GPUs (docs/decisions/hidden-gpus.md), so
// the user must ask for it.
bool IsWanted() {
  const char* wanted = getenv("STASIS_HIDE_GPUS");
  return wanted != nullptr && strcmp(wanted, "1") == 0;
}

// SAFETY: setenv could move the environment while another thread reads it. This class only
// exchanges one pointer. A thread that calls getenv or starts a program at that moment may find the
// longer list.
class LongerList {
 public:
  LongerList() {
    if (!IsWanted()) return;
    char** entry =
        FindEntry([](const char* text) { return strncmp(text, kVariable, kVariableBytes) == 0; });
    if (entry == nullptr) return;
    const std::string_view list = *entry + kVariableBytes;
    static GpuNames names;  // too large for the stack of some threads
    if (abi::HasUuids(list)) ReadGpuNames(kGpusFolder, &names);
    static char all[kListBytes];
    shown_ = ListAllGpus(list, names, all);
    if (shown_ == 0) return;
    snprintf(g_entry, sizeof(g_entry), "%s%s", kVariable, all);
    g_own_entry.store(*entry);
    __atomic_store_n(entry, &g_entry[0], __ATOMIC_RELEASE);
  }
  ~LongerList() { RestoreEntry(); }
  LongerList(const LongerList&) = delete;

  int shown() const { return shown_; }  // 0: unchanged

 private:
  int shown_ = 0;
};

}  // namespace

CUresult InitWithAllGpus(unsigned flags) {
  // A library that the driver loads in cuInit (CUDA_INJECTION64_PATH) may call cuInit too.
  const int self = int(syscall(SYS_gettid));
  if (g_holder.load() == self) return real::cuInit(flags);
  Lock lock(g_mutex);
  g_holder.store(self);
  CUresult r = CUDA_SUCCESS;
  int shown = 0;
  {
    LongerList list;
    shown = list.shown();
    r = real::cuInit(flags);
  }
  // The variable counts at the first cuInit that succeeds. Later ones change nothing.
  static bool is_initialised = false;
  int count = 0;
  if (r == CUDA_SUCCESS && !is_initialised) {
    is_initialised = true;
    const bool known = real::cuDeviceGetCount(&count) == CUDA_SUCCESS;
    if (known && shown > 0 && shown < count) g_visible_count.store(shown);
  }
  g_holder.store(0);
  return r;
}

bool IsHidden(CUdevice device) {
  const int visible = g_visible_count.load(std::memory_order_relaxed);
  return visible >= 0 && device >= visible;
}

void DescribeVisible(bool asks_driver, agent_protocol::Visible* reply) {
  static agent_protocol::Visible last;
  const int visible = g_visible_count.load();
  int count = visible;
  if (asks_driver && (visible >= 0 || real::cuDeviceGetCount(&count) == CUDA_SUCCESS)) {
    if (count > int(agent_protocol::kMaxDevices)) count = int(agent_protocol::kMaxDevices);
    last.hides = visible >= 0 ? 1 : 0;
    last.count = 0;
    for (int i = 0; i < count; ++i) {
      CUuuid uuid{};
      if (real::cuDeviceGetUuid_v2(&uuid, i) != CUDA_SUCCESS &&
          real::cuDeviceGetUuid(&uuid, i) != CUDA_SUCCESS) {
        break;
      }
      memcpy(last.gpus[last.count++].bytes, uuid.bytes, sizeof(uuid.bytes));
    }
  }
  *reply = last;
}

void ResetVisible() {
  g_mutex.ResetAfterFork();
  g_holder.store(0);
  RestoreEntry();  // another thread was in cuInit
}

// The results are those of a driver that hides the GPUs itself.

// Creates the control socket before the driver is initialised, so that a client that finds the
// process by its use of a GPU also finds the agent.
STASIS_EXPORT CUresult cuInit(unsigned flags) {
  if (!Bind()) return real::cuInit(flags);
  EnsureControl();
  return InitWithAllGpus(flags);
}

STASIS_EXPORT CUresult cuDeviceGetCount(int* count) {
  const CUresult r = real::cuDeviceGetCount(count);
  const int visible = g_visible_count.load(std::memory_order_relaxed);
  if (r == CUDA_SUCCESS && visible >= 0 && *count > visible) *count = visible;
  return r;
}

STASIS_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return IsHidden(ordinal) ? CUDA_ERROR_INVALID_DEVICE : real::cuDeviceGet(device, ordinal);
}

STASIS_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* bus_id) {
  CUdevice found = -1;
  const CUresult r = real::cuDeviceGetByPCIBusId(device == nullptr ? nullptr : &found, bus_id);
  if (r != CUDA_SUCCESS) return r;
  if (IsHidden(found)) return CUDA_ERROR_INVALID_DEVICE;
  *device = found;
  return r;
}

}  // namespace stasis::agent
