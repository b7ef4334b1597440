// Puts back the agent's library before the restore of a container.
#pragma once

#include "base/deadline.h"
#include "base/paths.h"
#include "containers/checkpoint.h"

namespace stasis::api {

// The container has the folder of the agent's library as a bind mount, and its runtime fails before
// it starts CRIU if this machine does not have the folder. Therefore puts the library back from
// this installation or from the checkpoint, as the restore of a program outside of containers does
// (checkpoint/agent_files.h). Does nothing if no library is available; the runtime's error then
// names the folder.
Status PutBackAgent(const Paths& paths, containers::CommandRunner& runner,
                    const containers::RestoreRequest& restore, bool trusted,
                    const Deadline& deadline);

}  // namespace stasis::api
