#include "capture.h"

#include "api.h"
#include "context.h"
#include "driver.h"

namespace softgpu {
namespace {

thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Calls `f` for each stream that takes part in the capture.
template <class F>
void ForMembers(const std::shared_ptr<Capture>& capture, F f) {
  for (auto& [stream, owned] : driver().streams) {
    if (stream->capture == capture) f(stream);
  }
}

}  // namespace

CUresult CaptureWork(Stream* stream, bool* captured) {
  *captured = stream->capture != nullptr;
  if (*captured) {
    if (!stream->capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    ++stream->capture->graph->nodes;
    return CUDA_SUCCESS;
  }
  if (!stream->legacy) return CUDA_SUCCESS;
  // A call on the legacy stream would wait for the stream that is being captured.
  for (Stream* other : stream->context->streams) {
    if (other->capture == nullptr || (other->flags & CU_STREAM_NON_BLOCKING)) continue;
    other->capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return CUDA_SUCCESS;
}

CUresult RefuseWhileCapturing(Stream* stream) {
  if (stream->capture != nullptr) {
    stream->capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  bool captured = false;
  return CaptureWork(stream, &captured);
}

CUresult RefuseUnsafe() {
  if (t_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (auto& [stream, owned] : driver().streams) {
    Capture* capture = stream->capture.get();
    if (capture == nullptr || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    bool mine = capture->thread == gettid();
    bool forbids = mine || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                            t_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!forbids) continue;
    capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

void JoinCapture(Stream* stream, const std::shared_ptr<Capture>& capture) {
  if (stream->capture == nullptr) stream->capture = capture;
}

namespace api {

using Lock = std::lock_guard<std::mutex>;

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  Lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto graph = std::make_unique<Graph>();
  stream->capture =
      std::make_shared<Capture>(Capture{mode, driver().next_id++, graph.get(), stream, gettid()});
  driver().graphs.emplace(graph.get(), std::move(graph));
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != gettid()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  ForMembers(capture, [](Stream* member) { member->capture = nullptr; });
  if (!capture->valid) {
    *graph = nullptr;
    driver().graphs.erase(capture->graph);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *graph = reinterpret_cast<CUgraph>(capture->graph);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return cuStreamGetCaptureInfo_v2(handle, status, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   size_t* count) {
  Lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = ResolveStream(handle, &stream); r != CUDA_SUCCESS) return r;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  const Capture* capture = stream->capture.get();
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->valid   ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                               : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (capture == nullptr) return CUDA_SUCCESS;
  if (id != nullptr) *id = capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(capture->graph);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return cuStreamGetCaptureInfo_v2(handle, status, id, graph, dependencies, count);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, t_mode);
  return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph* handle, unsigned int flags) {
  Lock lock(driver().mutex);
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto graph = std::make_unique<Graph>();
  *handle = reinterpret_cast<CUgraph>(graph.get());
  driver().graphs.emplace(graph.get(), std::move(graph));
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  Lock lock(driver().mutex);
  return driver().graphs.erase(reinterpret_cast<Graph*>(handle)) == 1 ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}

// Returns only the number of nodes; the nodes themselves are not kept.
CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  Lock lock(driver().mutex);
  auto it = driver().graphs.find(reinterpret_cast<Graph*>(handle));
  if (it == driver().graphs.end() || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  *count = it->second->nodes;
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace softgpu
