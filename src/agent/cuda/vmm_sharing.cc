// Export and import of the program's handles, as used by NCCL.
//
// cuMemExportToShareableHandle returns a token file in place of the driver's file: a sealed memfd
// that names this process and the handle. The program may send, keep, duplicate and close it, and
// CRIU saves it like any memfd. The importing process's agent reads the token and asks this
// process's agent for the memory, as with cuIpcGetMemHandle (ipc.h).
//
// Threads: the rules and the mutex of memory.h. The mutex is not held while another process is
// asked.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/program_vmm.h"

namespace stasis::agent {
namespace {

constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL (Linux 6.3), which some machines require

int MakeTokenFile() {
  int fd = memfd_create("stasis-gpu-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 && errno == EACCES) {
    fd = memfd_create("stasis-gpu-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  }
  return fd;
}

CUresult MakeToken(uint64_t id, int* out) {
  char bytes[sizeof(IpcHandle)];
  if (CUresult r = MakeIpcHandle(kIpcProgramHandle, id, bytes); r != CUDA_SUCCESS) return r;
  const int fd = MakeTokenFile();
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (write(fd, bytes, sizeof(bytes)) != ssize_t(sizeof(bytes)) ||
      fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *out = fd;
  return CUDA_SUCCESS;
}

// Returns false if the file is not a token. Other files are not read, since a read may disturb a
// file of the driver.
bool ReadToken(int fd, IpcHandle* out) {
  const int before = errno;
  struct stat s;
  char bytes[sizeof(IpcHandle)];
  bool read = syscall(SYS_fstat, fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size == sizeof(bytes);
  const int seals = read ? fcntl(fd, F_GET_SEALS) : -1;  // -1: the file cannot have seals
  read = seals >= 0 && (seals & kSeals) == kSeals &&
         pread(fd, bytes, sizeof(bytes), 0) == ssize_t(sizeof(bytes));
  errno = before;
  return read && ReadIpcHandle(kIpcProgramHandle, bytes, out);
}

// Adds a reference to a handle that is open already. Returns false if the handle is not open. The
// caller holds the mutex.
bool HoldAgain(const IpcHandle& token, CUmemGenericAllocationHandle* out) {
  for (ProgramHandle* handle : g_program_handles) {
    const bool same = handle->import != nullptr
                          ? handle->import->region == token.id &&
                                SameName(handle->import->from.name, token.owner.name)
                          : handle->id == token.id && IsOwn(token);
    if (!same) continue;
    ++handle->references;
    handle->claimed = true;
    *out = handle->id;
    return true;
  }
  return false;
}

// The caller holds g_growth_mutex, so no other thread imports the same handle meanwhile.
CUresult HoldGiven(const IpcHandle& token, CUdevice reader, IpcGiven* given,
                   CUmemGenericAllocationHandle* out) {
  auto* import = static_cast<Import*>(malloc(sizeof(Import)));
  if (import == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *import = {token.owner, token.id, reader, {}};
  CUmemGenericAllocationHandle real = 0;
  CUresult r =
      real::cuMemImportFromShareableHandle(&real, reinterpret_cast<void*>(intptr_t(given->fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (r == CUDA_SUCCESS) {
    {
      Lock lock(g_memory_mutex);
      if (ProgramHandle* made = AddProgramHandle(real, given->answer.region_bytes, reader)) {
        made->import = import;
        import->link.Take(given->socket);
        given->socket = -1;
        *out = made->id;
        return CUDA_SUCCESS;
      }
    }
    real::cuMemRelease(real);
    r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  free(import);
  return r;
}

CUresult ImportToken(const IpcHandle& token, CUmemGenericAllocationHandle* out) {
  if (!IsSound(token)) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = nullptr;
  CUdevice reader = 0;  // an import needs no context
  if (real::cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr &&
      real::cuCtxGetDevice(&reader) == CUDA_SUCCESS) {
    NoteContext(context, reader);
  }
  EnsureControl();
  {
    Lock lock(g_memory_mutex);
    if (HoldAgain(token, out)) return CUDA_SUCCESS;
  }
  if (IsOwn(token)) return CUDA_ERROR_INVALID_VALUE;  // released meanwhile
  IpcGiven given;
  if (CUresult r = AskPatiently(token, &given); r != CUDA_SUCCESS) return r;
  if (given.answer.region != token.id)
    return CUDA_ERROR_INVALID_VALUE;  // not a handle, according to its owner
  Lock growing(g_growth_mutex);
  {
    // Another thread may have imported the handle during the request to the owner.
    Lock lock(g_memory_mutex);
    if (HoldAgain(token, out)) return CUDA_SUCCESS;
  }
  return HoldGiven(token, reader, &given, out);
}

std::atomic<bool> g_unclaimed{false};

}  // namespace

void NoteUnclaimed() { g_unclaimed.store(true, std::memory_order_relaxed); }

void SayUnclaimed() {
  static std::atomic<bool> said{false};
  if (!g_unclaimed.load(std::memory_order_relaxed) || said.exchange(true)) return;
  dprintf(
      2,
      "stasis: process %d has exported GPU memory (cuMemExportToShareableHandle) that no "
      "process with a stasis agent has imported\n"
      "stasis: (a process without it cannot import the memory; start programs that share memory "
      "with such a process with `stasis run --no-agent`)\n",
      int(getpid()));
}

namespace hook {

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle id,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  constexpr const char* kWhat = "cuMemExportToShareableHandle";
  if (!IsProgramId(id)) {
    CUresult r = real::cuMemExportToShareableHandle(shareable, id, type, flags);
    if (r == CUDA_SUCCESS) NoteBlocker(agent_protocol::kBlockerSharedVmm, kWhat);
    return r;
  }
  {
    Lock lock(g_memory_mutex);
    ProgramHandle* handle = FindProgramHandle(id);
    if (handle == nullptr || handle->references == 0) return CUDA_ERROR_INVALID_VALUE;
    // No types were requested for an imported handle, so it cannot be exported again. The driver
    // does not export imported handles either.
    if ((handle->asked & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || shareable == nullptr || flags != 0) {
      CUresult r = real::cuMemExportToShareableHandle(shareable, handle->real, type, flags);
      if (r == CUDA_SUCCESS) NoteShared(handle, kWhat);
      return r;
    }
    handle->exported = true;
  }
  return MakeToken(id, static_cast<int*>(shareable));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle,
                                        CUmemAllocationHandleType type) {
  IpcHandle token;
  if (out != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
      ReadToken(int(reinterpret_cast<intptr_t>(os_handle)), &token)) {
    return ImportToken(token, out);
  }
  // The handle comes from a process without an agent, or it is a multicast object. No agent can
  // track which processes use it, and for how long.
  CUresult r = real::cuMemImportFromShareableHandle(out, os_handle, type);
  if (r == CUDA_SUCCESS) {
    NoteBlocker(agent_protocol::kBlockerSharedVmm, "cuMemImportFromShareableHandle");
  }
  return r;
}

}  // namespace hook
}  // namespace stasis::agent
