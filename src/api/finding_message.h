// Converts a finding of `stasis check` to a message.
#pragma once

#include "health/findings.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

v1::CheckResponse::Finding ToMessage(const health::Finding& finding);

}  // namespace stasis::api
