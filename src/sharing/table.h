// The table that the policy decides on: the programs that share GPUs, and the GPUs. Its owner
// fills it in; the policy only reads it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stasis::sharing {

// A time since any fixed moment, or a span.
using Time = std::chrono::nanoseconds;

enum class Class { kInteractive, kBatch };

// Where the state of a program is. A later state has more memory on the GPU.
enum class State {
  kSuspended,    // nothing is on the GPU
  kContextKept,  // contexts are on the GPU, data is in host memory
  kAwake,        // contexts and data are on the GPU
};

// What the user last asked for by hand.
enum class ByHand {
  kNothing,
  kSuspend,  // the policy never resumes the program
  kResume,   // the program goes before all others, and ends turns of its own user's programs
};

// The memory of a program on one GPU, in bytes.
struct Memory {
  uint64_t data = 0;
  uint64_t contexts = 0;
  // The size of an allocation that failed for lack of memory and waits. Ends when the program's
  // owner adds it to `data`, or gives it up.
  uint64_t asked = 0;
};

struct Program {
  std::string id;
  uint32_t user = 0;  // uid
  Class share_class = Class::kInteractive;
  State state = State::kAwake;
  // Differs from `state` while an operation is in progress. The policy lets it end.
  State target = State::kAwake;
  // The memory asked for was granted and is not yet allocated. A resume grants it too.
  bool granted = false;
  ByHand by_hand = ByHand::kNothing;
  bool pinned = false;  // the policy never suspends the program
  // Set while the program is suspended and a thread of it waits for the GPU, and while an
  // allocation of it waits.
  std::optional<Time> wanted_since;
  // A suspend has made room for the program (Action::for_id), which has not been served since.
  bool promised = false;
  Time used_last{0};           // the last GPU call
  Time turn_began{0};          // the last resume or grant
  Time swap_cost{0};           // measured: one suspend and one resume
  std::vector<Memory> memory;  // one element for each GPU of the table
};

struct Settings {
  // A program is idle when it has not used the GPU for this long, and for as long as its swap cost.
  Time idle_after = std::chrono::seconds(1);
  // A turn lasts at least this long, and at least turn_factor times the swap cost of the program
  // or of the one that waits for the turn's end, whichever is greater.
  Time shortest_turn = std::chrono::seconds(2);
  int turn_factor = 10;
  // A batch program goes after interactive programs until it has waited for this long.
  Time batch_patience = std::chrono::seconds(60);
};

struct Table {
  Settings settings;
  Time now{0};
  std::vector<uint64_t> gpu_bytes;  // for each GPU, the memory that the programs may share
  uint64_t host_bytes = 0;          // the host memory for the data of suspended programs
  std::vector<Program> programs;
};

}  // namespace stasis::sharing
