// Decides which programs leave the GPU and which return. A pure function: no clock, no thread, no
// I/O, and no state besides the table.
//
// Programs that want the GPU are served in the order in which they began to want it; a batch
// program counts as having come Settings::batch_patience later. A program for which others have
// left goes before all, so that these have not left in vain. Memory for the first one that does
// not fit yet is reserved on all its GPUs; a later program is served before it only from memory
// that this program does not need. Room is made in this order, and only as much as is needed:
//
//   1. data of idle programs, the longest idle first
//   2. contexts of suspended programs
//   3. data of programs whose turn is over, batch programs first
//   4. contexts of the programs of 1 and 3
//
// A batch program takes the place of an interactive one that is not idle only when it has waited
// for Settings::batch_patience.
//
// The bound: a program that wants the GPU, is not suspended by hand and not refused gets it within
//
//   P + N (T + 2 C)
//
// P is Settings::batch_patience for a batch program, else 0; N the number of programs, T the
// longest possible turn, C the time of the slowest suspend and resume together. Each of the at most
// N programs before it waits for at most one operation in progress, one turn and its own swap. A
// resume by hand, and each change of a pin, may add another T + 2 C.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharing/table.h"

namespace stasis::sharing {

struct Action {
  enum class Kind {
    kSuspendData,   // the contexts stay on the GPU
    kSuspendFully,  // also of a program whose data is already away
    kResume,        // grants the memory asked for too; it is free now
    kGrant,         // the waiting allocation may be tried again: its memory is free now
  };
  Kind kind;
  std::string id;
  std::string for_id;  // of a suspend: the program for which it makes room
};

// A program that wants the GPU and cannot get it until something else changes. A waiting allocation
// then fails, as it would without sharing.
struct Refusal {
  enum class Reason {
    kGpuMemory,  // it does not fit, even if all that are not pinned leave
    // The data that would have to leave does not fit into Table::host_bytes, or might not if the
    // program had what it asks for.
    kHostMemory,
  };
  Reason reason;
  std::string id;
};

struct Decision {
  std::vector<Action> actions;  // may be carried out at the same time
  std::vector<Refusal> refusals;
  // The time at which the decision may change although the table does not; empty if it cannot.
  std::optional<Time> look_again;
};

// Every program of the table must have one Memory for each GPU.
Decision Decide(const Table& table);

// The length of a turn of `program` while `waiting` waits for its end.
Time Turn(const Settings& settings, const Program& program, const Program& waiting);

// Returns the host memory that suffices whatever programs leave, if one more has `bytes` of data.
//
// A program leaves only when the GPU is full, and only if its memory is needed for the one that
// waits. So no more than the waiting program and one other are missing on a full GPU: at least the
// rest of it stays there. Nothing can be said of a GPU that is not full, nor if a program uses
// several GPUs, of which it leaves all.
uint64_t HostNeed(const Table& table, uint64_t bytes);

// Returns false if that is more than there is.
bool HostHasRoom(const Table& table, uint64_t bytes);

}  // namespace stasis::sharing
