// Tells the daemon that the program's GPU memory has grown, so that host memory can be made ready
// for the next suspend: touches a file, which the daemon watches. Only the control thread does
// this, because a file system may hang.
//
// A growth by an eighth is told at once, a smaller one a second after it, and memory that is freed
// and allocated again is not told.
#pragma once

#include <cstdint>

namespace stasis::agent::growth {

// Sets the file, before any other call; null: nothing is told.
void SetSignalFile(const char* path);
// Memory of the program was allocated or freed. Safe to call from any thread.
void Add(uint64_t bytes);
void Remove(uint64_t bytes);

// Touches the file if it is time to. Returns after how many milliseconds to call it again; -1:
// after the next WakeControl. Only the control thread may call this.
int Tell();

// Forgets the parent's memory, in a forked child.
void ResetAfterFork();

}  // namespace stasis::agent::growth
