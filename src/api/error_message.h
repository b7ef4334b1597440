// Encodes an Error to send it to another process: from a worker to the daemon, and from the daemon
// to its client.
#pragma once

#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Shortens texts so that the message takes at most a few KiB, because a gRPC trailer carries it.
v1::Error EncodeError(const Error& error);
// Converts an unknown code to kUnknown, and an unknown domain to the default one.
Error DecodeError(const v1::Error& message);

}  // namespace stasis::api
