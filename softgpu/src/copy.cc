// Copies and fills. All addresses belong to this process, so a copy is a memcpy on a stream's
// thread.

#include <string.h>

#include <cstdlib>
#include <vector>

#include "api.h"
#include "context.h"
#include "driver.h"
#include "fault.h"

namespace softgpu {
namespace {

using Lock = std::lock_guard<std::mutex>;

enum class Sort { kPageable, kPinned, kDevice };

// Classifies an address. If the driver manages the memory there, checks that it also manages the
// following `bytes`.
CUresult Look(CUdeviceptr address, size_t bytes, bool must_be_ours, Sort* sort) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(address);
  if (range == nullptr) {
    *sort = Sort::kPageable;
    return must_be_ours ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  }
  *sort = range->kind == RangeKind::kHost || range->kind == RangeKind::kRegistered ? Sort::kPinned
                                                                                   : Sort::kDevice;
  // One reservation may contain several adjacent mappings.
  while (address + bytes > range->address + range->bytes) {
    range = driver().memory.At(range->address + range->bytes);
    if (range == nullptr) {
      return *sort == Sort::kPinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

struct Side {
  CUdeviceptr address;
  bool must_be_ours;
};

enum class When { kAsync, kSync };

// A copy of `depth` slices, each of `height` rows of `width` bytes. A pitch is the distance in
// bytes between rows, a slice the distance between slices.
struct Shape {
  size_t width = 0, height = 1, depth = 1;
  size_t source_pitch = 0, source_slice = 0;
  size_t target_pitch = 0, target_slice = 0;

  size_t SourceSpan() const {
    return (depth - 1) * source_slice + (height - 1) * source_pitch + width;
  }
  size_t TargetSpan() const {
    return (depth - 1) * target_slice + (height - 1) * target_pitch + width;
  }
};

void CopyShape(CUdeviceptr target, CUdeviceptr source, const Shape& s) {
  for (size_t z = 0; z < s.depth; ++z) {
    for (size_t y = 0; y < s.height; ++y) {
      memmove(reinterpret_cast<char*>(target) + z * s.target_slice + y * s.target_pitch,
              reinterpret_cast<const char*>(source) + z * s.source_slice + y * s.source_pitch,
              s.width);
    }
  }
}

CUresult Copy(Side target, Side source, const Shape& shape, CUstream stream, When when) {
  if (shape.width == 0 || shape.height == 0 || shape.depth == 0) return CUDA_SUCCESS;
  Sort target_sort, source_sort;
  CUresult r = Look(target.address, shape.TargetSpan(), target.must_be_ours, &target_sort);
  if (r == CUDA_SUCCESS) {
    r = Look(source.address, shape.SourceSpan(), source.must_be_ours, &source_sort);
  }
  if (r != CUDA_SUCCESS) return r;
  bool device_only = target_sort == Sort::kDevice && source_sort == Sort::kDevice;
  auto copy = [=] { CopyShape(target.address, source.address, shape); };
  const bool staged_late =
      fault::PendingLate() > 0 && target_sort == Sort::kDevice && source_sort == Sort::kPageable;
  // A copy between devices does not wait, even in a synchronous call. A copy to pageable memory
  // waits, even in an asynchronous call.
  if ((when == When::kSync && !device_only && !staged_late) || target_sort == Sort::kPageable) {
    return SubmitAndWait(stream, copy);
  }
  if (source_sort == Sort::kPageable) {
    // Copy the source first, because the caller may change it after the return.
    size_t span = shape.SourceSpan();
    auto staged = std::make_shared<std::vector<char>>(
        reinterpret_cast<char*>(source.address), reinterpret_cast<char*>(source.address) + span);
    return Submit(stream, [=] {
      CopyShape(target.address, reinterpret_cast<CUdeviceptr>(staged->data()), shape);
    });
  }
  return Submit(stream, copy);
}

Shape Flat(size_t bytes) {
  Shape shape;
  shape.width = bytes;
  return shape;
}

CUdeviceptr Address(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

template <class M>
CUresult Ends(const M& m, Side* target, Side* source) {
  switch (m.srcMemoryType) {
    case CU_MEMORYTYPE_HOST:
      *source = {Address(m.srcHost), false};
      break;
    case CU_MEMORYTYPE_DEVICE:
      *source = {m.srcDevice, true};
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *source = {m.srcDevice, false};
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  switch (m.dstMemoryType) {
    case CU_MEMORYTYPE_HOST:
      *target = {Address(m.dstHost), false};
      break;
    case CU_MEMORYTYPE_DEVICE:
      *target = {m.dstDevice, true};
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *target = {m.dstDevice, false};
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult Copy2D(const CUDA_MEMCPY2D* m, CUstream stream, When when) {
  if (m == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Side target, source;
  if (CUresult r = Ends(*m, &target, &source); r != CUDA_SUCCESS) return r;
  Shape shape;
  shape.width = m->WidthInBytes;
  shape.height = m->Height;
  shape.source_pitch = m->srcPitch != 0 ? m->srcPitch : m->WidthInBytes;
  shape.target_pitch = m->dstPitch != 0 ? m->dstPitch : m->WidthInBytes;
  if (shape.source_pitch < shape.width || shape.target_pitch < shape.width) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  source.address += m->srcY * shape.source_pitch + m->srcXInBytes;
  target.address += m->dstY * shape.target_pitch + m->dstXInBytes;
  return Copy(target, source, shape, stream, when);
}

CUresult Copy3D(const CUDA_MEMCPY3D* m, CUstream stream, When when) {
  if (m == nullptr || m->srcLOD != 0 || m->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  Side target, source;
  if (CUresult r = Ends(*m, &target, &source); r != CUDA_SUCCESS) return r;
  Shape shape;
  shape.width = m->WidthInBytes;
  shape.height = m->Height;
  shape.depth = m->Depth;
  shape.source_pitch = m->srcPitch != 0 ? m->srcPitch : m->WidthInBytes;
  shape.target_pitch = m->dstPitch != 0 ? m->dstPitch : m->WidthInBytes;
  if (shape.source_pitch < shape.width || shape.target_pitch < shape.width) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  shape.source_slice = shape.source_pitch * (m->srcHeight != 0 ? m->srcHeight : m->Height);
  shape.target_slice = shape.target_pitch * (m->dstHeight != 0 ? m->dstHeight : m->Height);
  source.address += m->srcZ * shape.source_slice + m->srcY * shape.source_pitch + m->srcXInBytes;
  target.address += m->dstZ * shape.target_slice + m->dstY * shape.target_pitch + m->dstXInBytes;
  return Copy(target, source, shape, stream, when);
}

template <class T>
CUresult Fill(CUdeviceptr target, size_t pitch, T value, size_t width, size_t height,
              CUstream stream) {
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  if (target % sizeof(T) != 0 || pitch % sizeof(T) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (height > 1 && pitch < width * sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
  Sort sort;
  size_t span = (height - 1) * pitch + width * sizeof(T);
  if (CUresult r = Look(target, span, true, &sort); r != CUDA_SUCCESS) return r;
  return Submit(stream, [=] {
    for (size_t y = 0; y < height; ++y) {
      T* row = reinterpret_cast<T*>(target + y * pitch);
      std::fill(row, row + width, value);
    }
  });
}

}  // namespace

namespace api {

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  return Copy({dst, false}, {src, false}, Flat(n), nullptr, When::kSync);
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
  return Copy({dst, false}, {src, false}, Flat(n), s, When::kAsync);
}
CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n) {
  return Copy({dst, true}, {src, true}, Flat(n), nullptr, When::kSync);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n,
                           CUstream s) {
  return Copy({dst, true}, {src, true}, Flat(n), s, When::kAsync);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t n) {
  return Copy({dst, true}, {Address(src), false}, Flat(n), nullptr, When::kSync);
}
CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t n) {
  return Copy({Address(dst), false}, {src, true}, Flat(n), nullptr, When::kSync);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  return Copy({dst, true}, {src, true}, Flat(n), nullptr, When::kSync);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, CUstream s) {
  return Copy({dst, true}, {Address(src), false}, Flat(n), s, When::kAsync);
}
CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, CUstream s) {
  return Copy({Address(dst), false}, {src, true}, Flat(n), s, When::kAsync);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
  return Copy({dst, true}, {src, true}, Flat(n), s, When::kAsync);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* m) { return Copy2D(m, nullptr, When::kSync); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* m) { return Copy2D(m, nullptr, When::kSync); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* m, CUstream s) {
  return Copy2D(m, s, When::kAsync);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* m) { return Copy3D(m, nullptr, When::kSync); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* m, CUstream s) {
  return Copy3D(m, s, When::kAsync);
}

CUresult cuMemsetD8_v2(CUdeviceptr p, unsigned char v, size_t n) {
  return Fill(p, 0, v, n, 1, nullptr);
}
CUresult cuMemsetD16_v2(CUdeviceptr p, unsigned short v, size_t n) {
  return Fill(p, 0, v, n, 1, nullptr);
}
CUresult cuMemsetD32_v2(CUdeviceptr p, unsigned int v, size_t n) {
  return Fill(p, 0, v, n, 1, nullptr);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr p, size_t pitch, unsigned char v, size_t w, size_t h) {
  return Fill(p, pitch, v, w, h, nullptr);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr p, size_t pitch, unsigned short v, size_t w, size_t h) {
  return Fill(p, pitch, v, w, h, nullptr);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr p, size_t pitch, unsigned int v, size_t w, size_t h) {
  return Fill(p, pitch, v, w, h, nullptr);
}
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
  return Fill(p, 0, v, n, 1, s);
}
CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) {
  return Fill(p, 0, v, n, 1, s);
}
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned int v, size_t n, CUstream s) {
  return Fill(p, 0, v, n, 1, s);
}
CUresult cuMemsetD2D8Async(CUdeviceptr p, size_t pitch, unsigned char v, size_t w, size_t h,
                           CUstream s) {
  return Fill(p, pitch, v, w, h, s);
}
CUresult cuMemsetD2D16Async(CUdeviceptr p, size_t pitch, unsigned short v, size_t w, size_t h,
                            CUstream s) {
  return Fill(p, pitch, v, w, h, s);
}
CUresult cuMemsetD2D32Async(CUdeviceptr p, size_t pitch, unsigned int v, size_t w, size_t h,
                            CUstream s) {
  return Fill(p, pitch, v, w, h, s);
}

}  // namespace api
}  // namespace softgpu
