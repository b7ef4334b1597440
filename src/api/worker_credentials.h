// A worker switches to its caller's credentials first, and then to the folders and settings that
// the caller would use without a daemon.
#pragma once

#include "api/call.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Moves this process into the caller's control groups, which everything that it starts inherits.
// Must be called before TakeCredentials, because only root may move a process into another user's
// control group.
Status JoinCallersCgroups(const v1::WorkerRequest& request);

// Switches to the caller's credentials; this cannot be undone. A root daemon's worker for another
// user keeps two capabilities, which its children do not inherit: CAP_CHECKPOINT_RESTORE and
// CAP_SYS_PTRACE. They would permit access to other users' processes. Operations therefore compare
// the credentials of every process with their own, and refuse those of other users.
Status TakeCredentials(const v1::WorkerRequest& request);

// Makes the context of the call. Must be called after TakeCredentials, because it opens files as
// the caller.
Result<Call> MakeCall(const v1::WorkerRequest& request);

// Returns settings as text, for a CallContext: if `trusted`, those that a caller with fewer rights
// than the daemon may not set; otherwise those that every caller may set.
google::protobuf::Map<std::string, std::string> SettingsText(const config::Settings& settings,
                                                             bool trusted);
// Returns a request of the daemon's own user, without a method.
v1::WorkerRequest OwnWork(const config::Settings& settings);
v1::CallContext::Folders FoldersOf(const Paths& paths);

}  // namespace stasis::api
