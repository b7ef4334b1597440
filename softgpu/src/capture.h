// Stream capture: its states and the calls that it forbids. Captured work is only counted; such a
// graph cannot be instantiated.
#pragma once

#include "stream.h"

namespace softgpu {

struct Graph {
  size_t nodes = 0;
};

// All functions below require driver().mutex. CaptureWork sets `*captured` if work for the stream
// goes to a graph instead of the stream.
CUresult CaptureWork(Stream* stream, bool* captured);
// Called by functions that wait for a stream or run synchronously. Returns an error while the
// stream is being captured or, for the legacy stream, while any stream is.
CUresult RefuseWhileCapturing(Stream* stream);
// Called by functions that a capture in global mode forbids to all threads: cuMemAlloc and related
// functions, cuEventQuery.
CUresult RefuseUnsafe();
// Adds a stream to a capture, because the stream waits for an event that was recorded in the
// capture.
void JoinCapture(Stream* stream, const std::shared_ptr<Capture>& capture);

}  // namespace softgpu
