// Stream capture: its states and the calls it forbids. What is captured is only counted; such a
// graph cannot be instantiated.
#pragma once

#include "stream.h"

namespace softgpu {

struct Graph {
  size_t nodes = 0;
};

// All under driver().mutex.
// Work for a stream: `*captured` when it goes into a graph and not to the stream.
CUresult CaptureWork(Stream* stream, bool* captured);
// A call that waits for a stream, or works at once, while that or (for the legacy stream) any
// captures.
CUresult RefuseWhileCapturing(Stream* stream);
// A call that a capture in global mode forbids, whoever makes it: cuMemAlloc and its kin,
// cuEventQuery.
CUresult RefuseUnsafe();
// A wait for an event of a capture takes the stream into that capture.
void JoinCapture(Stream* stream, const std::shared_ptr<Capture>& capture);

}  // namespace softgpu
