// Names the gRPC metadata that accompanies a call.
#pragma once

namespace stasis::api {

// From the client: a v1::CallContext.
inline constexpr char kContextHeader[] = "stasis-context-bin";
// From the daemon, in the trailer of a call that failed: a v1::Error.
inline constexpr char kErrorHeader[] = "stasis-error-bin";
inline constexpr int kMaxHeaderBytes = 64 << 10;

}  // namespace stasis::api
