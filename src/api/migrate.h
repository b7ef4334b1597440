// Moves a running program to another host. Both functions work in this process, with its rights and
// without the daemon, because this process has the connection and the ssh keys.
#pragma once

#include "api/call.h"
#include "base/fd.h"
#include "base/result.h"
#include "stasis/v1/migration.pb.h"

namespace stasis::api {

// Sends the program to `stasis receive` on the other host, and ends it here once it is running
// there. After an error the program continues to run here, unless the error has `not_undone`; then
// the message says where the program is. The result is that of the last dump, with the program's
// job and pid on the other host.
Result<v1::OperationEvent> Migrate(Call& call, const v1::MigrateRequest& request);

// Receives one migration over these descriptors, until they are closed.
Status ReceiveMigration(Call& call, UniqueFd input, UniqueFd output);

}  // namespace stasis::api
