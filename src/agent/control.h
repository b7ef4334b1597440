// The agent's door and the thread behind it.
//
// The door is a socket pair: clients take one end with pidfd_getfd and send a socket of their own
// over it, on which they then talk (wire/protocol.h). Nothing of it has a name, or a place in
// CRIU's image that would have to be connected again.
#pragma once

namespace stasis::agent {

// Makes the door and starts the thread, once in each process that uses a GPU; after that it costs a
// load. Called by the program's threads.
void EnsureControl();

}  // namespace stasis::agent
