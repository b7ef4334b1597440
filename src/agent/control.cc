#include "agent/control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/blockers.h"
#include "agent/carrier.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/driver_memory.h"
#include "agent/cuda/floor.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/program_vmm.h"
#include "agent/descriptors.h"
#include "agent/device_files.h"
#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/header.h"
#include "agent/ipc_server.h"
#include "agent/libc_symbol.h"
#include "agent/requests.h"
#include "agent/thread.h"
#include "wire/packet.h"

// In .data, not .bss: its pages belong to the library's file, by which a client finds them.
extern "C" {
__attribute__((visibility("default"), used)) stasis::wire::AgentHeader stasis_agent_header = {
    {'S', 't', 'a', 's', 'i', 's', ' ', 'a', 'g', 'e', 'n', 't', '\r', '\n', 1, 0},
    stasis::wire::kVersion,
    sizeof(stasis::wire::AgentHeader),
    0,
    -1,
    stasis::wire::kMemoryTold | stasis::wire::kStepsTold,
    0,
    {}};
}

namespace stasis::agent {
namespace {

std::atomic<uint32_t> g_started{0};  // 0 no, 1 being started, 2 yes
Watched g_outside;                   // the end for clients
Watched g_inside;
bool g_children_keep_files = false;  // see EnsureControl

bool MakeDoor() {
  g_outside.Close();
  g_inside.Close();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  g_outside.Take(ends[0]);
  g_inside.Take(ends[1]);
  wire::AgentHeader& header = stasis_agent_header;
  FindBuildId(&header, header.build_id);
  header.door_mark = g_outside.mark;
  header.pid = getpid();
  __atomic_store_n(&header.door_fd, g_outside.fd, __ATOMIC_RELEASE);
  return true;
}

void* Control(void*) {
  gate::Exempt exempt;
  gate::Prepare();
  for (;;) {
    // Whatever has opened the gate, processes may stand before it that want our memory.
    if (!gate::IsClosed()) AnswerIpcWaiters();
    pollfd items[2] = {{g_inside.fd, POLLIN, 0}, {ClientSocket(), POLLIN, 0}};
    int ready = poll(items, 2, ReopenIsDue() ? kReopenAgainMs : -1);
    if (ready == 0) ReopenAlone();
    if (ready <= 0) continue;
    if (items[1].revents != 0) HearClient();
    if (items[0].revents == 0) continue;
    if (!g_inside.Holds() || (items[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
      // The program has closed the door, as one that closes everything does. Make another.
      if (!MakeDoor()) {
        std::atomic<uint32_t> nobody{0};
        FutexWait(&nobody, 0, 100 * 1000000);
      }
      continue;
    }
    if (int socket = wire::ReceiveDoorKnock(g_inside.fd); socket >= 0) AdmitClient(socket);
  }
}

// SAFETY: in the child after fork, where only this thread exists and locks may be held by others.
// Nothing of the parent's GPU memory is usable here; its descriptors would keep it alive, and the
// driver's files would keep the child from being dumped.
void AfterForkInChild() {
  for (Region* region : g_regions) {
    region->kept.Close();
  }
  for (ProgramHandle* handle : g_program_handles) {
    handle->kept.Close();
  }
  ResetIpc();
  g_outside.Close();
  g_inside.Close();
  ResetRequests();
  stasis_agent_header.door_fd = -1;
  stasis_agent_header.memory = wire::kMemoryTold | wire::kStepsTold;
  if (!g_children_keep_files) LeaveDeviceFilesToParent(MayBeHostMemory);
  AbandonListAfterFork();
  gate::ResetAfterFork();
  ResetMemory();
  ResetProgramVmm();
  ResetDriverMemory();
  ResetContexts();
  ResetFloor();
  ResetCaptures();
  ResetBlockers();
  g_started.store(0);
}

}  // namespace

void EnsureControl() {
  if (__builtin_expect(g_started.load(std::memory_order_acquire) == 2, 1)) return;
  uint32_t no = 0;
  if (!g_started.compare_exchange_strong(no, 1)) return;  // another thread is at it
  int before = errno;
  static bool registered = false;  // handlers are inherited by children
  if (!registered) pthread_atfork(nullptr, nullptr, AfterForkInChild);
  // For a program whose forked children speak to the GPU's files past CUDA (NVML).
  g_children_keep_files = getenv("STASIS_FORK_KEEPS_GPU_FILES") != nullptr;
  registered = true;
  bool made = MakeDoor() && StartThread("stasis-agent", Control, nullptr);
  if (!made) stasis_agent_header.door_fd = -1;
  errno = before;
  g_started.store(made ? 2 : 0, std::memory_order_release);
}

}  // namespace stasis::agent
