// The agent's door and the thread behind it.
//
// The door is a socket pair: clients take one end with pidfd_getfd and send a socket of their own
// over it, on which they then talk (wire/protocol.h). Nothing of it has a name, or a place in
// CRIU's image that would have to be connected again.
#pragma once

#include "wire/protocol.h"

namespace stasis::agent {

// Makes the door and starts the thread, once in each process that uses a GPU; after that it costs a
// load. Called by the program's threads.
void EnsureControl();

// A duplicate that lies high and is closed on exec; -1: none left.
int KeepHigh(int fd);

// The descriptor of an imported handle. A program may close it, as some close all they find, and
// then the number is another file's: that one we neither close nor send away.
struct KeptFd {
  int fd = -1;
  uint64_t identity = 0;

  bool held() const { return fd >= 0; }
  bool Intact() const;
  bool Keep(int from);  // a duplicate of it; false: none left
  void Close();
};

}  // namespace stasis::agent
