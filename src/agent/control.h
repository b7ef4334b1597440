// Creates the agent's control socket and serves it on the control thread.
//
// The control socket is a socket pair. A client duplicates one end with pidfd_getfd and uses it
// only to send another socket, which carries the client's requests (agent_protocol/protocol.h). The
// control socket has no name, and the process holds both of its ends, so CRIU restores it without
// connecting to anything outside.
#pragma once

namespace stasis::agent {

// Creates the control socket and starts the control thread, once in each process that uses a GPU;
// later calls cost one load. The first call comes from cuInit, so every process that uses the
// driver has a control socket. Safe to call from any thread.
void EnsureControl();

// Wakes the control thread, so that it looks at the state of the program. Preserves errno. Safe to
// call from any thread.
void WakeControl();

// Set before a fork in the forking thread, and inherited by the child: true if no other thread was
// changing a table. If it is false, the child must not read the tables.
extern __thread bool t_tables_are_whole __attribute__((tls_model("initial-exec")));

}  // namespace stasis::agent
