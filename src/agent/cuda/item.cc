#include "agent/cuda/item.h"

#include <fcntl.h>

#include "agent/cuda/contexts.h"

namespace stasis::agent {

void WorkOn(const Item& item) {
  const Import* import = ImportOf(item);
  // Another process's memory is used on the device on which it was opened, and may be on a GPU that
  // this process does not see.
  CUcontext context = ContextOn(import != nullptr ? import->reader : DeviceOf(item));
  if (context == nullptr) context = AnyContext();
  if (context != nullptr) real::cuCtxSetCurrent(context);
}

CUresult ReleaseItem(const Item& item) {
  WorkOn(item);
  CUresult r = UnmapItem(item);
  if (r != CUDA_SUCCESS) return r;
  r = real::cuMemRelease(HandleOf(item));
  if (r == CUDA_SUCCESS || MapItem(item) != CUDA_SUCCESS) PresentIn(item) = false;
  return r;
}

CUresult ExportItem(const Item& item, int* fd) {
  if (KeptOf(item).held()) {
    *fd = KeptOf(item).Intact() ? fcntl(KeptOf(item).fd, F_DUPFD_CLOEXEC, 0) : -1;
    return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  }
  WorkOn(item);
  return real::cuMemExportToShareableHandle(fd, HandleOf(item),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult ImportItem(const Item& item, int fd) {
  WorkOn(item);
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = real::cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t(fd)),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (r != CUDA_SUCCESS) return r;
  HandleOf(item) = handle;
  r = MapItem(item);
  if (r == CUDA_SUCCESS) {
    PresentIn(item) = true;
  } else {
    real::cuMemRelease(handle);
  }
  return r;
}

}  // namespace stasis::agent
