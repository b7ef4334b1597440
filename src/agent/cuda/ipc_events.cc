#include "agent/cuda/ipc_events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/ipc_answers.h"
#include "agent/gate.h"
#include "agent/vector.h"

namespace stasis::agent {
namespace {

using agent_protocol::IpcOutcome;

struct Own {
  CUevent event;  // null if its context has ended
  CUcontext context;
  uint64_t id;
  uint32_t asked;  // the number of threads that look at it now
  bool ended;  // destroyed by the program; the last of these threads destroys the driver's event
};
struct Theirs {
  CUevent event;  // never recorded
  CUcontext context;
  IpcPlace owner;
  uint64_t id;
};

Mutex g_mutex;
Vector<Own> g_own;        // made for sharing
Vector<Theirs> g_theirs;  // opened
// Events that the driver shares, because the other process may have no agent.
struct Drivers {
  CUevent event;
  CUcontext context;
};
Vector<Drivers> g_drivers;
// g_any is set when any of the tables above gets an entry, g_any_theirs when g_theirs gets one.
// Calls on ordinary events read only these two flags.
std::atomic<bool> g_any{false};
std::atomic<bool> g_any_theirs{false};

size_t IndexOf(CUevent event) {
  return g_own.FindIf([&](const Own& own) { return own.event == event && !own.ended; });
}

// Not inlined, so that a call on an ordinary event only loads the flag and has no barrier.
[[gnu::noinline]] bool LookForTheirs(CUevent event, Theirs* out) {
  Lock lock(g_mutex);
  for (const Theirs& one : g_theirs) {
    if (one.event != event) continue;
    *out = one;
    return true;
  }
  return false;
}

bool FindTheirs(CUevent event, Theirs* out) {
  if (__builtin_expect(!g_any_theirs.load(std::memory_order_acquire), 1)) return false;
  return LookForTheirs(event, out);
}

void Release(uint64_t id) {
  CUevent gone = nullptr;
  {
    Lock lock(g_mutex);
    for (size_t i = 0; i < g_own.size(); ++i) {
      if (g_own[i].id != id || --g_own[i].asked > 0 || !g_own[i].ended) continue;
      gone = g_own[i].event;
      g_own.Erase(i);
      break;
    }
  }
  if (gone != nullptr) real::cuEventDestroy_v2(gone);
}

CUcontext CurrentContext() {
  CUcontext context = nullptr;
  real::cuCtxGetCurrent(&context);
  return context;
}

void NoteDriversEvent(CUevent event, const char* what) {
  const CUcontext context = CurrentContext();
  Lock lock(g_mutex);
  for (const Drivers& known : g_drivers) {
    if (known.event == event) return;
  }
  g_drivers.Push({event, context});
  g_any.store(true, std::memory_order_release);
  NoteBlocker(agent_protocol::kBlockerIpcEvent, what);
}

enum class Wait { kReached, kNotYet, kUnknown };

// Asks the owner. An owner that does not listen has ended or is suspended, and in both cases all of
// its submitted work has finished. After any other error the event may be incomplete, and a program
// that continues would read data too early.
Wait AskOwner(const Theirs& theirs, int timeout_ms) {
  // An owner that is about to stop listening closes connections that it has not answered, so ask
  // again.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) usleep(10 * 1000);
    const char* why = "";
    int socket = ConnectIpc(theirs.owner, &why);
    if (socket < 0) {
      if (errno == ECONNREFUSED) return Wait::kReached;
      if (errno == EAGAIN || errno == EINTR) continue;
      return Wait::kUnknown;
    }
    agent_protocol::IpcAnswer answer{};
    int fd = -1;
    const bool answered = AskIpc(socket, agent_protocol::Type::kIpcWait, {{}, {}, theirs.id, 0},
                                 timeout_ms, &answer, &fd, &why);
    if (fd >= 0) close(fd);
    close(socket);
    if (answered && answer.outcome == IpcOutcome::kDriver) return Wait::kUnknown;
    if (answered) return Wait::kReached;
    if (timeout_ms >= 0) return Wait::kNotYet;
  }
  return Wait::kUnknown;
}

[[gnu::noinline]] CUresult RefuseRecord() {
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    dprintf(2,
            "stasis: process %d records a CUDA event of another process, which the stasis agent "
            "does not support; start the program with `stasis run --no-agent`\n",
            int(getpid()));
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

bool IsSharedEvent(uint64_t id) {
  if (id == 0 || !g_any.load(std::memory_order_acquire)) return false;
  Lock lock(g_mutex);
  return g_own.FindIf([&](const Own& own) { return own.id == id && !own.ended; }) < g_own.size();
}

namespace {

[[gnu::noinline]] CUresult AwaitOne(CUevent event) {
  Theirs theirs;
  if (!LookForTheirs(event, &theirs)) return CUDA_SUCCESS;
  gate::Outside outside;
  return AskOwner(theirs, -1) == Wait::kReached ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

}  // namespace

CUresult AwaitTheirs(CUevent event) {
  if (__builtin_expect(!g_any_theirs.load(std::memory_order_acquire), 1)) return CUDA_SUCCESS;
  return AwaitOne(event);
}

IpcOutcome LookAtEvent(uint64_t id) {
  CUevent event = nullptr;
  CUcontext context = nullptr;
  {
    Lock lock(g_mutex);
    for (Own& own : g_own) {
      if (own.id != id || own.ended) continue;
      event = own.event;
      context = own.context;
      ++own.asked;
    }
  }
  if (event == nullptr) return IpcOutcome::kGone;
  CUresult result = CUDA_SUCCESS;
  {
    gate::TryAsk asking;
    // If the gate is sealed, all submitted work has finished, so the event has completed.
    if (asking.inside()) {
      result = real::cuCtxSetCurrent(context);
      if (result == CUDA_SUCCESS) result = real::cuEventQuery(event);
    }
  }
  Release(id);
  if (result == CUDA_ERROR_NOT_READY) return IpcOutcome::kNotNow;
  return result == CUDA_SUCCESS ? IpcOutcome::kReady : IpcOutcome::kDriver;
}

void IpcEventsEndWith(CUcontext context) {
  if (!g_any.load(std::memory_order_acquire)) return;
  Lock lock(g_mutex);
  g_own.EraseIf([&](Own& own) {
    if (own.context != context) return false;
    own.event = nullptr;  // the driver destroys it, so Release must not
    own.ended = true;
    return own.asked == 0;
  });
  g_theirs.EraseIf([&](const Theirs& theirs) { return theirs.context == context; });
  g_drivers.EraseIf([&](const Drivers& drivers) {
    if (drivers.context != context) return false;
    ForgetBlocker(agent_protocol::kBlockerIpcEvent);
    return true;
  });
}

// SAFETY: only for a forked child, which has no other threads.
void ResetIpcEvents() {
  g_mutex.ResetAfterFork();
  g_own.AbandonAfterFork();
  g_theirs.AbandonAfterFork();
  g_drivers.AbandonAfterFork();
  g_any.store(false);
  g_any_theirs.store(false);
  ResetIpcAnswers();
}

namespace hook {

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  constexpr unsigned kShared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  if ((flags & kShared) != kShared) return real::cuEventCreate(event, flags);
  CUresult r = real::cuEventCreate(event, flags & ~unsigned(CU_EVENT_INTERPROCESS));
  if (r != CUDA_SUCCESS) return r;
  const CUcontext context = CurrentContext();
  Lock lock(g_mutex);
  if (!g_own.Push({*event, context, NextBufferId(), 0, false})) {
    real::cuEventDestroy_v2(*event);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  g_any.store(true, std::memory_order_release);
  return r;
}

CUresult cuEventDestroy_v2(CUevent event) {
  if (g_any.load(std::memory_order_acquire)) {
    Lock lock(g_mutex);
    if (size_t i = IndexOf(event); i < g_own.size()) {
      g_own[i].ended = true;
      if (g_own[i].asked > 0) return CUDA_SUCCESS;
      g_own.Erase(i);
    }
    g_theirs.EraseIf([&](const Theirs& theirs) { return theirs.event == event; });
    g_drivers.EraseIf([&](const Drivers& drivers) {
      if (drivers.event != event) return false;
      ForgetBlocker(agent_protocol::kBlockerIpcEvent);
      return true;
    });
  }
  return real::cuEventDestroy_v2(event);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  uint64_t id = 0;
  {
    Lock lock(g_mutex);
    if (size_t i = IndexOf(event); i < g_own.size()) id = g_own[i].id;
  }
  if (id == 0) {
    CUresult r = real::cuIpcGetEventHandle(handle, event);
    if (r == CUDA_SUCCESS) NoteDriversEvent(event, "cuIpcGetEventHandle");
    return r;
  }
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  EnsureControl();
  return MakeIpcHandle(kIpcEvent, id, handle->reserved);
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle bytes) {
  IpcHandle handle;
  if (!ReadIpcHandle(kIpcEvent, bytes.reserved, &handle)) {
    CUresult r = real::cuIpcOpenEventHandle(event, bytes);
    if (r == CUDA_SUCCESS) NoteDriversEvent(*event, "cuIpcOpenEventHandle");
    return r;
  }
  if (event == nullptr || !IsSound(handle)) return CUDA_ERROR_INVALID_VALUE;
  if (IsOwn(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  EnsureControl();
  for (bool again = true;;) {
    const char* why = "";
    agent_protocol::IpcAnswer answer{};
    int socket = ConnectIpc(handle.owner, &why), fd = -1;
    const bool answered =
        socket >= 0 && AskIpc(socket, agent_protocol::Type::kIpcGive, {{}, {}, handle.id, 0},
                              10 * 1000, &answer, &fd, &why);
    if (fd >= 0) close(fd);
    if (socket >= 0) close(socket);
    if (answered && answer.outcome == IpcOutcome::kReady) break;
    if (!answered && AwaitOwner(handle.owner, &again)) continue;
    SayCannotOpen(handle.owner.pid, answered ? "it has destroyed the event" : why);
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult r = real::cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
  if (r != CUDA_SUCCESS) return r;
  const CUcontext context = CurrentContext();
  Lock lock(g_mutex);
  if (!g_theirs.Push({*event, context, handle.owner, handle.id})) {
    real::cuEventDestroy_v2(*event);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  g_any.store(true, std::memory_order_release);
  g_any_theirs.store(true, std::memory_order_release);
  return r;
}

#define STASIS_RECORD(symbol, parameters, arguments)       \
  CUresult symbol parameters {                             \
    Theirs theirs;                                         \
    if (FindTheirs(event, &theirs)) return RefuseRecord(); \
    return real::symbol arguments;                         \
  }
STASIS_RECORD(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
STASIS_RECORD(cuEventRecord_ptsz, (CUevent event, CUstream stream), (event, stream))
STASIS_RECORD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
              (event, stream, flags))
STASIS_RECORD(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned flags),
              (event, stream, flags))
#undef STASIS_RECORD

CUresult cuEventQuery(CUevent event) {
  constexpr int kPatienceMs = 100;
  Theirs theirs;
  if (FindTheirs(event, &theirs)) {
    const Wait wait = AskOwner(theirs, kPatienceMs);
    if (wait == Wait::kNotYet) return CUDA_ERROR_NOT_READY;
    if (wait == Wait::kUnknown) return CUDA_ERROR_UNKNOWN;
  }
  return real::cuEventQuery(event);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  if (CUresult r = AwaitTheirs(event); r != CUDA_SUCCESS) return r;
  return real::cuStreamWaitEvent(stream, event, flags);
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  if (CUresult r = AwaitTheirs(event); r != CUDA_SUCCESS) return r;
  return real::cuStreamWaitEvent_ptsz(stream, event, flags);
}

}  // namespace hook
}  // namespace stasis::agent
