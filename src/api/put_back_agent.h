// Puts back the agent's library before the restore of a container.
#pragma once

#include "base/deadline.h"
#include "base/paths.h"
#include "containers/checkpoint.h"

namespace stasis::api {

// The folder of the agent's library is a bind mount of the container. If this machine does not have
// the folder, the runtime fails before it starts CRIU. This function therefore puts the library
// back from this installation or from the checkpoint, like the restore of a program outside of
// containers (checkpoint/agent_files.h). Does nothing if no library is available; the runtime's
// error then names the folder.
Status PutBackAgent(const Paths& paths, containers::CommandRunner& runner,
                    const containers::RestoreRequest& restore, bool trusted,
                    const Deadline& deadline);

}  // namespace stasis::api
