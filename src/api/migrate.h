// Moves a running program to another host. Both functions do the work in this process, with its
// rights and without the daemon: the connection, and the keys for ssh, belong to it.
#pragma once

#include "api/call.h"
#include "base/fd.h"
#include "base/result.h"
#include "stasis/v1/migration.pb.h"

namespace stasis::api {

// Sends the program to `stasis receive` on the other host, and ends it here when it runs there.
// After an error the program runs on here, unless the error has `not_undone`; then the message says
// where the program is. The result is that of the last dump, with the program's job and pid on the
// other host.
Result<v1::OperationEvent> Migrate(Call& call, const v1::MigrateRequest& request);

// The other side: serves one migration on these descriptors until they are closed.
Status ReceiveMigration(Call& call, UniqueFd input, UniqueFd output);

}  // namespace stasis::api
