#include "agent/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/blockers.h"
#include "agent/carrier.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/driver_memory.h"
#include "agent/cuda/floor.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/ipc_answers.h"
#include "agent/cuda/program_vmm.h"
#include "agent/descriptors.h"
#include "agent/device_files.h"
#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/growth.h"
#include "agent/header.h"
#include "agent/ipc_server.h"
#include "agent/libc_symbol.h"
#include "agent/requests.h"
#include "agent/room.h"
#include "agent/thread.h"
#include "agent/watch.h"
#include "agent_protocol/packet.h"

// The header is in .data, not .bss, because clients find it through the pages that map the
// library's file.
extern "C" {
__attribute__((visibility("default"), used))
stasis::agent_protocol::AgentHeader stasis_agent_header = {
    {'S', 't', 'a', 's', 'i', 's', ' ', 'a', 'g', 'e', 'n', 't', '\r', '\n', 1, 0},
    stasis::agent_protocol::kVersion,
    sizeof(stasis::agent_protocol::AgentHeader),
    0,
    -1,
    stasis::agent_protocol::kSupported,
    0,
    {}};
}

namespace stasis::agent {

__thread bool t_tables_are_whole __attribute__((tls_model("initial-exec"))) = false;

namespace {

std::atomic<uint32_t> g_started{0};  // 0 not started, 1 starting, 2 started
Watched g_outside;                   // the end of the control socket that clients duplicate
Watched g_inside;
std::atomic<bool> g_children_keep_files{false};  // see EnsureControl

bool MakeControlSocket() {
  g_outside.Close();
  g_inside.Close();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  g_outside.Take(ends[0]);
  g_inside.Take(ends[1]);
  agent_protocol::AgentHeader& header = stasis_agent_header;
  FindBuildId(&header, header.build_id);
  header.control_mark = g_outside.mark;
  header.pid = getpid();
  __atomic_store_n(&header.control_fd, g_outside.fd, __ATOMIC_RELEASE);
  return true;
}

void* Control(void*) {
  gate::Exempt exempt;
  gate::Prepare();
  for (;;) {
    // Importers may have been told to wait until the gate opens. Several code paths open the gate,
    // so this loop checks whether it is open.
    if (!gate::IsClosed()) AnswerIpcWaiters();
    TellWatcher();
    // A peer that ends before another one connects is handled first: the control socket is first in
    // the list, so that poll reports the end too.
    pollfd items[3] = {{g_inside.fd, POLLIN, 0},
                       {ClientSocket(), POLLIN, 0},
                       {WatcherSocket(), WatcherEvents(), 0}};
    int wait_ms = growth::Tell();
    if (ReopenIsDue() && (wait_ms < 0 || wait_ms > kReopenAgainMs)) wait_ms = kReopenAgainMs;
    int ready = poll(items, 3, wait_ms);
    if (ready == 0 && ReopenIsDue()) ReopenAlone();
    if (ready <= 0) continue;
    if (items[1].revents != 0) HearClient();
    if (items[2].revents != 0) HearWatcher();
    if (items[0].revents == 0) continue;
    if (!g_inside.Holds() || (items[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
      // Some programs close every descriptor, including the control socket; make a new one.
      if (!MakeControlSocket()) {
        std::atomic<uint32_t> never{0};
        FutexWait(&never, 0, 100'000'000);
      }
      continue;
    }
    // A message of WakeControl has no socket.
    const int socket = agent_protocol::ReceiveClientSocket(g_inside.fd);
    if (socket < 0) continue;
    if (IsWatcher(socket)) {
      AdmitWatcher(socket);
    } else {
      AdmitClient(socket);
    }
  }
}

// The mutexes of the tables that AfterForkInChild reads, in locking order.
Mutex* const kTableMutexes[] = {&g_ipc_server_mutex, &g_ipc_answers_mutex, &g_memory_mutex,
                                &g_driver_memory_mutex};

// The number of BeforeFork calls on this thread without a matching AfterFork call. It exceeds one
// if the handlers are registered twice (in a child of a fork in the middle of EnsureControl), or if
// a signal handler forks in the middle of a fork.
__thread uint32_t t_forks __attribute__((tls_model("initial-exec"))) = 0;

// Called before a fork: takes the mutexes of all tables, so that the child finds the tables in a
// consistent state. Other threads hold these mutexes only briefly, except while memory is exported
// to another process. The wait is bounded, because a signal handler may fork while its own thread
// holds one of these mutexes.
void BeforeFork() {
  constexpr int64_t kLongestNs = 1000000000;
  if (t_forks++ != 0) return;
  const int64_t deadline = NowNs() + kLongestNs;
  for (Mutex* mutex : kTableMutexes) {
    if (mutex->LockUntil(deadline)) continue;
    for (Mutex* const* taken = kTableMutexes; *taken != mutex; ++taken) (*taken)->Unlock();
    return;
  }
  t_tables_are_whole = true;
}

void AfterForkInParent() {
  if (t_forks != 0 && --t_forks != 0) return;
  if (!t_tables_are_whole) return;
  t_tables_are_whole = false;
  for (Mutex* mutex : kTableMutexes) mutex->Unlock();
}

// SAFETY: runs in the child after fork. Only this thread exists, and threads that are gone may have
// held any lock, so this function takes no lock, allocates nothing and frees nothing. The parent's
// GPU memory is not usable here, but inherited descriptors would keep it alive, and the driver's
// open files would prevent a dump of the child. With `keeps_files` the driver's files stay open.
void ResetInChild(bool keeps_files) {
  for (Mutex* mutex : kTableMutexes) mutex->ResetAfterFork();
  if (!t_tables_are_whole) {
    g_regions.AbandonAfterFork();
    g_program_handles.AbandonAfterFork();
  }
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
  ResetWatcher();
  stasis_agent_header.control_fd = -1;
  stasis_agent_header.memory = agent_protocol::kSupported;
  if (!keeps_files) LeaveDeviceFilesToParent(MayBeHostMemory);
  ResetCarrier();
  ResetBlockers();
  gate::ResetAfterFork();  // may note a blocker
  ResetMemory();
  ResetProgramVmm();
  ResetDriverMemory();
  ResetContexts();
  ResetFloor();
  ResetCaptures();
  g_started.store(0);
  t_tables_are_whole = false;
  t_forks = 0;
}

void AfterForkInChild() {
  // If the agent has not started, the process opened the driver's files without CUDA (through NVML,
  // for example), so its children may continue to use them.
  ResetInChild(g_started.load() == 0 || g_children_keep_files.load());
}

// Handles a fork that began before the functions above were registered. Another thread may have
// held a lock during a look-up, or may have been in the middle of EnsureControl.
void AfterEarlyForkInChild() {
  if (t_forks == 0) ResetInChild(/*keeps_files=*/true);
}

__attribute__((constructor)) void RegisterForEarlyForks() {
  pthread_atfork(nullptr, nullptr, AfterEarlyForkInChild);
}

}  // namespace

void WakeControl() {
  const int before = errno;
  const char byte = 2;
  if (g_outside.Holds()) send(g_outside.fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  errno = before;
}

void EnsureControl() {
  if (__builtin_expect(g_started.load(std::memory_order_acquire) == 2, 1)) return;
  uint32_t no = 0;
  if (!g_started.compare_exchange_strong(no, 1)) return;  // another thread starts it
  int before = errno;
  // Lets forked children keep the driver's files open, for programs that use these files without
  // CUDA (through NVML, for example).
  g_children_keep_files.store(getenv("STASIS_FORK_KEEPS_GPU_FILES") != nullptr);
  static bool registered = false;  // handlers are inherited by children
  // The handlers are registered now rather than at program start, because BeforeFork must run
  // before the memory allocator's handler, and such handlers run in reverse order of registration.
  // Threads call the allocator while they hold the tables' mutexes, so these must be taken first.
  if (!registered) pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  registered = true;
  growth::SetSignalFile(getenv("STASIS_GROWTH_SIGNAL"));
  const char* signal = getenv("STASIS_SHARE_SIGNAL");
  if (signal != nullptr) room::ExpectWatcher();
  bool made = MakeControlSocket() && StartThread("stasis-agent", Control, nullptr);
  if (!made) stasis_agent_header.control_fd = -1;
  // The daemon waits for a change of this file, and connects.
  if (made && signal != nullptr) utimensat(AT_FDCWD, signal, nullptr, AT_SYMLINK_NOFOLLOW);
  errno = before;
  g_started.store(made ? 2 : 0, std::memory_order_release);
}

}  // namespace stasis::agent
