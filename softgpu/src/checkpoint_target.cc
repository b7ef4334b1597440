#include "checkpoint.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>

#include "driver.h"
#include "fault.h"
#include "process_header.h"
#include "stream.h"

namespace softgpu {
namespace {

ProcessHeader* g_header = nullptr;

CUprocessState State() { return CUprocessState(g_header->state.load()); }
void SetState(CUprocessState state) { g_header->state.store(state); }

// The client holds the lock while it waits for the answer.
bool ClientIsThere() {
  if (flock(g_header->request_read, LOCK_EX | LOCK_NB) != 0) return true;
  flock(g_header->request_read, LOCK_UN);
  return false;
}

CUresult LockProcess(uint32_t timeout_ms) {
  if (State() != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
  Gate& gate = driver().gate;
  uint64_t deadline = NowNs() + uint64_t(timeout_ms) * 1'000'000;
  gate.Close();
  for (;;) {
    uint32_t seen = gate.progress.load();
    bool drained = gate.empty() && g_pending.load() == 0;
    // Undo the lock if the client has died, because nothing else would unlock the process.
    if (!ClientIsThere() || (!drained && timeout_ms != 0 && NowNs() >= deadline)) {
      gate.Open();  // undo the lock
      return CUDA_ERROR_NOT_READY;
    }
    if (drained) break;
    FutexWait(&gate.progress, seen, 10);
  }
  SetState(CU_PROCESS_STATE_LOCKED);
  return CUDA_SUCCESS;
}

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

constexpr size_t kPiece = 4096;  // divides the size of every memory

bool IsZero(const char* piece) {
  const auto* words = reinterpret_cast<const uint64_t*>(piece);
  for (size_t i = 0; i < kPiece / sizeof(uint64_t); ++i) {
    if (words[i] != 0) return false;
  }
  return true;
}

// Copies to memory that is all zero. Pieces of zeros are skipped, so that the kernel need not
// allocate them.
void CopyPages(char* target, const char* source, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    if (!IsZero(source + at)) memcpy(target + at, source + at, kPiece);
  }
}

void DropBackup(Memory* memory) {
  if (memory->backup != nullptr) munmap(memory->backup, memory->bytes);
  memory->backup = nullptr;
}

CUresult BackUp(Memory* memory) {
  void* backup = mmap(nullptr, memory->bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (backup == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->backup = backup;
  CopyPages(static_cast<char*>(backup), static_cast<char*>(At(memory->home)), memory->bytes);
  return CUDA_SUCCESS;
}

bool Imported(const Memory& memory) { return memory.imported_handle || memory.imported_ipc; }

// Unmaps the memory at its home address. If that address lies within a module image, it stays
// reserved.
void UnmapHome(Memory* memory) {
  if (memory->kind == MemoryKind::kModule) {
    (void)mmap(At(memory->home), memory->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0);
  } else {
    munmap(At(memory->home), memory->bytes);
  }
}

CUresult CheckpointProcess() {
  if (State() != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  // Calls that only read the driver's state are not blocked.
  std::lock_guard lock(driver().mutex);
  MemoryTable& table = driver().memory;
  for (auto& [memory, owned] : table.memories()) {
    if (memory->managed) return CUDA_ERROR_NOT_SUPPORTED;  // stays locked
  }
  for (auto& [memory, owned] : table.memories()) {
    CUresult r = Imported(*memory) ? CUDA_SUCCESS : BackUp(memory);
    if (r == CUDA_SUCCESS) continue;
    for (auto& [done, also] : table.memories()) DropBackup(done);
    return r;
  }
  for (auto& [address, range] : table.ranges()) {
    if (range.kind == RangeKind::kMapped) munmap(At(address), range.bytes);
  }
  for (auto& [memory, owned] : table.memories()) UnmapHome(memory);
  driver().broker.Disconnect();
  SetState(CU_PROCESS_STATE_CHECKPOINTED);
  return CUDA_SUCCESS;
}

int PhysicalOf(const unsigned char* uuid) {
  const BrokerConfig& config = driver().broker.config();
  for (uint32_t i = 0; i < config.device_count; ++i) {
    if (memcmp(config.uuids[i], uuid, sizeof(config.uuids[i])) == 0) return int(i);
  }
  return -1;
}

bool UsedOrdinal(int ordinal) {
  for (auto& [memory, owned] : driver().memory.memories()) {
    if (memory->ordinal == ordinal) return true;
  }
  return false;
}

// Returns whether the map names a GPU of this machine that CUDA_VISIBLE_DEVICES hides from the
// program. On another machine, the real driver has not been seen with the variable.
bool MovesOutside(const CheckpointRequest& request) {
  auto is_visible = [](const char* uuid) {
    for (int i = 0; i < driver().device_count; ++i) {
      if (memcmp(driver().devices[i].uuid, uuid, 16) == 0) return true;
    }
    return false;
  };
  for (int i = 0; i < driver().device_count; ++i) {
    if (PhysicalOf(driver().devices[i].uuid) < 0) return false;
  }
  return std::any_of(request.pairs, request.pairs + request.pair_count,
                     [&](const auto& pair) { return !is_visible(pair.newUuid.bytes); });
}

// Chooses the physical device of each of the program's devices for a restore. If the request has
// pairs (old and new GPU), they must include every device in use.
CUresult ChooseTargets(const CheckpointRequest& request, int* physical) {
  bool taken[kMaxDevices] = {};
  bool open[kMaxDevices] = {};
  for (int i = 0; i < driver().device_count; ++i) {
    const unsigned char* wanted = driver().devices[i].uuid;
    bool paired = request.pair_count == 0;
    for (uint32_t p = 0; p < request.pair_count; ++p) {
      if (memcmp(request.pairs[p].oldUuid.bytes, driver().devices[i].uuid, 16) != 0) continue;
      wanted = reinterpret_cast<const unsigned char*>(request.pairs[p].newUuid.bytes);
      paired = true;
    }
    open[i] = !paired && !UsedOrdinal(i);  // gets a remaining device
    if (open[i]) continue;
    physical[i] = paired ? PhysicalOf(wanted) : -1;
    if (physical[i] < 0 || taken[physical[i]]) return CUDA_ERROR_INVALID_VALUE;
    taken[physical[i]] = true;
  }
  if (MovesOutside(request)) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t p = 0; p < request.pair_count; ++p) {
    bool known = false;
    for (int i = 0; i < driver().device_count; ++i) {
      known |= memcmp(request.pairs[p].oldUuid.bytes, driver().devices[i].uuid, 16) == 0;
    }
    if (!known) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < driver().device_count; ++i) {
    if (!open[i]) continue;
    int same = PhysicalOf(driver().devices[i].uuid);
    int next = 0;
    while (next < int(driver().broker.config().device_count) && taken[next]) ++next;
    physical[i] = same >= 0 && !taken[same] ? same : next;
    if (physical[i] >= int(driver().broker.config().device_count)) return CUDA_ERROR_INVALID_VALUE;
    taken[physical[i]] = true;
  }
  return CUDA_SUCCESS;
}

CUresult MakeAgain(Memory* memory) {
  Fd file;
  CUresult r = MakeDeviceFile(memory->ordinal, memory->bytes, &file);
  if (r != CUDA_SUCCESS) return r;
  if (!MapDeviceFile(file, memory->home, memory->bytes, memory->kind == MemoryKind::kModule)) {
    return CUDA_ERROR_MAP_FAILED;
  }
  return memory->keep ? driver().broker.Keep(file.get(), &memory->ticket) : CUDA_SUCCESS;
}

// Makes the failure of a restore final: as with the real driver, it cannot be retried.
CUresult Lost(CUresult why) {
  SetState(CU_PROCESS_STATE_FAILED);
  driver().broker.Disconnect();
  return why;
}

CUresult RestoreProcess(const CheckpointRequest& request) {
  if (State() != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  std::lock_guard lock(driver().mutex);
  MemoryTable& table = driver().memory;
  for (auto& [memory, owned] : table.memories()) {
    if (memory->imported_handle) return Lost(CUDA_ERROR_NOT_SUPPORTED);
    if (memory->imported_ipc) return Lost(CUDA_ERROR_INVALID_VALUE);
  }
  if (CUresult r = driver().broker.Connect(); r != CUDA_SUCCESS) return r;
  int physical[kMaxDevices] = {};
  if (CUresult r = ChooseTargets(request, physical); r != CUDA_SUCCESS) {
    driver().broker.Disconnect();
    return r;
  }
  for (int i = 0; i < driver().device_count; ++i) {
    Device& device = driver().devices[i];
    device.physical = physical[i];
    memcpy(device.uuid, driver().broker.config().uuids[physical[i]], sizeof(device.uuid));
  }
  // Allocate all memory first, so that nothing is copied if it does not fit.
  for (auto& [memory, owned] : table.memories()) {
    CUresult r = MakeAgain(memory);
    if (r == CUDA_SUCCESS) continue;
    for (auto& [made, also] : table.memories()) UnmapHome(made);
    return Lost(r);
  }
  for (auto& [memory, owned] : table.memories()) {
    CopyPages(static_cast<char*>(At(memory->home)), static_cast<char*>(memory->backup),
              memory->bytes);
    DropBackup(memory);
  }
  for (auto& [address, range] : table.ranges()) {
    if (range.kind != RangeKind::kMapped) continue;
    if (table.MapAlias(range.memory, address) != CUDA_SUCCESS) return Lost(CUDA_ERROR_MAP_FAILED);
    mprotect(At(address), range.bytes, range.protection);
  }
  SetState(CU_PROCESS_STATE_LOCKED);
  return CUDA_SUCCESS;
}

CUresult UnlockProcess() {
  if (State() != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  SetState(CU_PROCESS_STATE_RUNNING);
  driver().gate.Open();
  return CUDA_SUCCESS;
}

CUresult Serve(const CheckpointRequest& request) {
  auto checked = [](const char* symbol, auto act) {
    CUresult r = fault::Check(symbol, true);
    return r != CUDA_SUCCESS ? r : act();
  };
  switch (request.op) {
    case CheckpointOp::kLock:
      return checked("cuCheckpointProcessLock", [&] { return LockProcess(request.timeout_ms); });
    case CheckpointOp::kCheckpoint:
      return checked("cuCheckpointProcessCheckpoint", CheckpointProcess);
    case CheckpointOp::kRestore:
      return checked("cuCheckpointProcessRestore", [&] { return RestoreProcess(request); });
    case CheckpointOp::kUnlock:
      return checked("cuCheckpointProcessUnlock", UnlockProcess);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

void* ThreadMain(void*) {
  prctl(PR_SET_NAME, "softgpu-restore");
  // Touch this library's thread-local storage now, because its first use calls malloc.
  OnStreamThread();
  PerThreadDefault();
  g_header->restore_thread = gettid();
  g_header->state.store(CU_PROCESS_STATE_RUNNING);
  g_header->magic.store(kHeaderMagic);
  for (;;) {
    CheckpointRequest request;
    ssize_t got = read(g_header->request_read, &request, sizeof(request));
    if (got < 0 && errno == EINTR) continue;
    if (got != ssize_t(sizeof(request))) return nullptr;  // the program closed the pipe
    if (!ClientIsThere()) continue;  // the client died before its request was read
    CheckpointReply reply{request.nonce, int32_t(Serve(request)), 0};
    // The pipe is non-blocking, because unread answers may fill it.
    if (write(g_header->reply_write, &reply, sizeof(reply)) < 0 && errno != EAGAIN) return nullptr;
  }
}

bool MakePipe(int32_t* read_end, int32_t* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  Fd reading(ends[0]), writing(ends[1]);
  reading.MoveHigh();
  writing.MoveHigh();
  *read_end = reading.Release();
  *write_end = writing.Release();
  return true;
}

// Maps the header's page. Returns nullptr if a second copy of this library in this process has
// mapped it.
void* MapHeader(uint64_t address, int protection) {
  void* page = mmap(At(address), kPage, protection,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (page == At(address)) return page;
  if (page != MAP_FAILED) munmap(page, kPage);
  return nullptr;
}

}  // namespace

CUresult StartRestoreThread(bool hip) {
  if (hip && MapHeader(kHeaderAddress, PROT_NONE) == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  void* page = MapHeader(hip ? kHipHeaderAddress : kHeaderAddress, PROT_READ | PROT_WRITE);
  if (page == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  madvise(page, kPage, MADV_WIPEONFORK);
  g_header = new (page) ProcessHeader();
  g_header->version = kHeaderVersion;
  g_header->pid = getpid();
  if (!MakePipe(&g_header->request_read, &g_header->request_write) ||
      !MakePipe(&g_header->reply_read, &g_header->reply_write)) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  fcntl(g_header->reply_write, F_SETFL, O_NONBLOCK);
  BlockSignals block;
  pthread_t thread;
  if (pthread_create(&thread, nullptr, ThreadMain, nullptr) != 0) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  pthread_detach(thread);
  while (g_header->magic.load() != kHeaderMagic) sched_yield();
  return CUDA_SUCCESS;
}

void EndIfCheckpointed(const char* symbol) {
  if (g_header == nullptr || State() != CU_PROCESS_STATE_CHECKPOINTED) return;
  fprintf(stderr, "softgpu: %s was called after the checkpoint and read unmapped memory\n", symbol);
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

}  // namespace softgpu
