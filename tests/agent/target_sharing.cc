// Commands of target.cc for memory, events and handles shared with another process.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "target.h"

namespace target {
namespace {

// Converts a handle to digits and back; the digits are the second word of the line.
template <class T>
std::string Hex(const T& handle) {
  std::string text;
  char pair[3];
  for (char byte : handle.reserved) {
    snprintf(pair, sizeof(pair), "%02x", uint8_t(byte));
    text += pair;
  }
  return text;
}
template <class T>
T Unhex() {
  T handle{};
  const char* at = strchr(line, ' ');
  for (char& byte : handle.reserved) {
    unsigned value = 0;
    if (at == nullptr || sscanf(++at, "%2x", &value) != 1) Die("no handle", 0);
    byte = char(value);
    ++at;
  }
  return handle;
}

std::vector<CUevent> events;

std::vector<CUmemGenericAllocationHandle> handles;

std::string Kept(CUresult r, CUmemGenericAllocationHandle handle) {
  if (r != CUDA_SUCCESS) return "error " + std::to_string(r);
  handles.push_back(handle);
  return std::to_string(handles.size() - 1);
}

// Copies a sealed file and changes one byte.
int Spoiled(int fd, uint64_t at) {
  char bytes[64];
  if (pread(fd, bytes, sizeof(bytes), 0) != ssize_t(sizeof(bytes))) Die("pread", errno);
  bytes[at % sizeof(bytes)] ^= 1;
  const int copy = memfd_create("spoiled", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (write(copy, bytes, sizeof(bytes)) != ssize_t(sizeof(bytes)) ||
      fcntl(copy, F_ADD_SEALS, fcntl(fd, F_GET_SEALS)) != 0) {
    Die("memfd", errno);
  }
  return copy;
}

// Copies to a file on disk (in the current directory), which cannot be sealed.
int Copied(int fd) {
  char bytes[64], name[] = "copied-XXXXXX";
  const int copy = mkstemp(name);
  if (copy < 0 || unlink(name) != 0) Die("mkstemp", errno);
  if (pread(fd, bytes, sizeof(bytes), 0) != ssize_t(sizeof(bytes)) ||
      write(copy, bytes, sizeof(bytes)) != ssize_t(sizeof(bytes))) {
    Die("copy", errno);
  }
  return copy;
}

}  // namespace

std::string DoIpc(const std::string& verb, uint64_t a, uint64_t b) {
  if (verb == "get") {  // for an address b bytes into piece a
    CUipcMemHandle handle;
    CUresult r = api.cuIpcGetMemHandle(&handle, pieces[a].address + b);
    return r == CUDA_SUCCESS ? Hex(handle) : "error " + std::to_string(r);
  }
  if (verb == "open") {
    Piece piece{};
    CUresult r = api.cuIpcOpenMemHandle_v2(&piece.address, Unhex<CUipcMemHandle>(),
                                           CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r != CUDA_SUCCESS) return "error " + std::to_string(r);
    MUST(cuMemGetAddressRange_v2(nullptr, &piece.bytes, piece.address));
    pieces.push_back(piece);
    return std::to_string(pieces.size() - 1);
  }
  if (verb == "close") return std::to_string(api.cuIpcCloseMemHandle(pieces[a].address));
  if (verb == "capable") {
    unsigned capable = 7;
    MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                               pieces[a].address));
    return std::to_string(capable);
  }
  CUevent event = nullptr;
  if (verb == "share-event") {
    CUipcEventHandle handle;
    MUST(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    MUST(cuIpcGetEventHandle(&handle, event));
    events.push_back(event);
    return Hex(handle);
  }
  if (verb == "open-event") {
    if (CUresult r = api.cuIpcOpenEventHandle(&event, Unhex<CUipcEventHandle>())) {
      return "error " + std::to_string(r);
    }
    events.push_back(event);
    return "ok";
  }
  if (verb == "record") return std::to_string(api.cuEventRecord(events[a], stream));
  if (verb == "query") return std::to_string(api.cuEventQuery(events[a]));
  if (verb == "sync") return std::to_string(api.cuEventSynchronize(events[a]));
  if (verb == "wait") {
    MUST(cuStreamWaitEvent(stream, events[a], 0));
    return std::to_string(api.cuStreamSynchronize(stream));
  }
  if (verb == "end-event") {
    MUST(cuEventDestroy_v2(events[a]));
    return "ok";
  }
  return "unknown";
}

// Handles of the program, shared as files.
std::string DoHandle(const std::string& verb, uint64_t a, uint64_t b) {
  constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  if (verb == "make") {  // size in bytes; 1: not exportable
    CUmemAllocationProp properties = Properties(b == 0 ? kFile : CU_MEM_HANDLE_TYPE_NONE);
    CUresult r = api.cuMemCreate(&handle, a, &properties, 0);
    return Kept(r, handle);
  }
  if (verb == "map") {  // size in bytes
    Piece piece{0, b};
    CUmemAccessDesc access{Properties(kFile).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemAddressReserve(&piece.address, b, 0, 0, 0));
    if (CUresult r = api.cuMemMap(piece.address, b, 0, handles[a], 0)) {
      return "error " + std::to_string(r);
    }
    MUST(cuMemSetAccess(piece.address, b, &access, 1));
    pieces.push_back(piece);
    return std::to_string(pieces.size() - 1);
  }
  if (verb == "unmap") return std::to_string(api.cuMemUnmap(pieces[a].address, pieces[a].bytes));
  if (verb == "release") return std::to_string(api.cuMemRelease(handles[a]));
  if (verb == "retain") {
    CUresult r =
        api.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(pieces[a].address));
    return Kept(r, handle);
  }
  if (verb == "about") {
    CUmemAllocationProp found{};
    if (CUresult r = api.cuMemGetAllocationPropertiesFromHandle(&found, handles[a])) {
      return "error " + std::to_string(r);
    }
    return std::to_string(found.type) + " " + std::to_string(found.location.type) + " " +
           std::to_string(found.location.id) + " " + std::to_string(found.requestedHandleTypes);
  }
  if (verb == "export") {
    int fd = -1;
    CUresult r = api.cuMemExportToShareableHandle(&fd, handles[a], kFile, 0);
    return r == CUDA_SUCCESS ? std::to_string(fd) : "error " + std::to_string(r);
  }
  if (verb == "import") {  // the file that process a has open as b, as if received through a socket
    const int process = int(syscall(SYS_pidfd_open, a, 0));
    const int fd = int(syscall(438 /* pidfd_getfd */, process, int(b), 0));
    CUresult r =
        api.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t(fd)), kFile);
    if (fd >= 0) close(fd);
    close(process);
    return Kept(r, handle);
  }
  if (verb == "spoil") return std::to_string(Spoiled(int(a), b));
  if (verb == "copy") return std::to_string(Copied(int(a)));
  if (verb == "close") return std::to_string(close(int(a)));
  return "unknown";
}

}  // namespace target
