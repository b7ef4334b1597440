// What a worker takes on before it does anything for its caller: the caller's rights, and then the
// folders and settings that the caller would have without a daemon.
#pragma once

#include "base/result.h"
#include "service/call.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::service {

// For good. Of root's rights a worker of another user keeps two capabilities, which no child of its
// inherits: CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE. What they allow beyond the user's own
// processes is refused by the coordinator, which compares every process's credentials with its own.
Status TakeRights(const v1::WorkerRequest& request);

// After TakeRights: what is looked at here is looked at as that user.
Result<Call> CallOf(const v1::WorkerRequest& request);

// The settings as text, for a CallContext. `trusted`: those that only the daemon's own
// configuration says; else those that a user may choose.
google::protobuf::Map<std::string, std::string> SettingsText(const config::Settings& settings,
                                                             bool trusted);
v1::CallContext::Folders FoldersOf(const Paths& paths);

}  // namespace stasis::service
