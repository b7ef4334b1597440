// Answers the requests of a PipedStore from an object store of this host.
#pragma once

#include "migration/channel.h"
#include "objects/object_store.h"

namespace stasis::migration {

// Answers `frame`, which `channel` has just received, if it is a request about objects. Returns
// false, and reads and sends nothing, if it is another message. Errors of the store and bad
// requests are sent to the other side; the call returns errors of the channel only. The keys of
// requests are checked here, and all their sizes before host memory is allocated. At most one
// object or range of kMaxPayloadBytes is in host memory.
Result<bool> ServeObjectRequest(objects::ObjectStore& store, const Frame& frame, Channel& channel,
                                const objects::CallOptions& call);

}  // namespace stasis::migration
