// Allocations that found no GPU memory, and wait until a watcher has made room (watch.h).
//
// A waiting thread counts as outside of the gate and holds no mutex of the agent, so its program
// can be suspended and forked meanwhile. Without a watcher nothing waits, and with one an
// allocation waits for a limited time, so that it also ends if the watcher hangs.
//
// Safe to call from any thread, except Reset.
#pragma once

#include <cstdint>

#include "agent_protocol/protocol.h"

namespace stasis::agent::room {

struct Request {
  uint64_t bytes;
  agent_protocol::Uuid device;
};

// Counts the frees of GPU memory by this program. Read it before an allocation is tried.
uint32_t Frees();
// Call this when memory has been freed: waiting allocations are tried again.
void NoteFree();

// One allocation of the program, from its first try to its end.
class Wait {
 public:
  Wait() = default;
  ~Wait() { Leave(); }
  Wait(const Wait&) = delete;

  // Call this when a try of the allocation has failed for lack of memory. Waits, and returns true
  // if the allocation should be tried again; false if it must fail. `frees` is Frees() from before
  // the try.
  bool Await(const Request& request, uint32_t frees);
  // Returns true for the last try, which nothing follows.
  bool is_last() const { return last_; }

 private:
  void Leave();
  int64_t TimeLeftNs();

  uint64_t number_ = 0;   // 0: not in the table
  int64_t since_ns_ = 0;  // when it began to wait
  uint32_t attempts_ = 0;
  bool last_ = false;  // tried for the last time
};

// What follows is for the watcher's connection.

// Says that a watcher will soon connect for the first time. Until then, for a few seconds at most,
// allocations wait for it.
void ExpectWatcher();
// Returns true if an allocation would wait.
bool IsServed();
// A watcher has connected: allocations wait for its answers.
void WatcherCame();
// Sets for how long one allocation waits at most, with all of its tries.
void SetLongestWait(int64_t longest_ns);
// Sets and returns how much memory of a GPU of this size allocations should leave free.
void SetSpare(uint64_t bytes);
uint64_t SpareBytes(uint64_t total_bytes);
// The watcher has disconnected: all that wait fail. If another one will come (`returns`), they wait
// for it instead, and so do new ones.
void WatcherLeft(bool returns);

struct Waiting {
  uint64_t number;
  uint32_t attempts;  // how often it has failed after an answer
  Request request;
};
// Returns the first allocation that waits and has no answer. Returns false if there is none.
bool First(Waiting* out);
// Lets an allocation be tried again, or fail. Ignores a number that does not wait.
void Answer(uint64_t number, bool try_again);

// Forgets the parent's waiting threads, in a forked child.
void ResetAfterFork();

}  // namespace stasis::agent::room
