// Exports, releases and maps the program's memory at a suspend and a resume. Only the control
// thread may call these functions, while the gate is closed and all work is drained, except where a
// comment says otherwise. So no other thread changes the tables meanwhile.
#pragma once

#include "agent/cuda/memory.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

// Lists all memory that is to be saved; indexes are valid until the next call. Returns false if
// host memory for the list cannot be allocated.
bool ListCarried();
uint32_t CarriedCount();
agent_protocol::Range DescribeCarried(uint32_t index);

// While the program runs: describes and exports up to `most` items of the memory that ListCarried
// would list, from item `first` on, and returns their number. Stops early at an error. The caller
// must close the descriptors. Between two calls, items may move within the list.
uint32_t ExportRunning(uint32_t first, uint32_t most, agent_protocol::Range* ranges, int* fds);
// Exports a descriptor of the item's memory, which the caller must close.
CUresult ExportCarried(uint32_t index, int* fd);
// Keeps a descriptor of the item's memory, so that the memory survives a release.
CUresult HoldCarried(uint32_t index);
// Records that the item's device is another GPU after the resume. ApplyMoves applies these records
// when all memory is mapped.
void MoveCarried(uint32_t index, const agent_protocol::Uuid& gpu);
void ApplyMoves();
// Closes the held descriptors of released memory. From then on only other processes keep the memory
// alive.
void LetGoOfCarried();
// Unmaps and releases the memory. Its addresses stay reserved. With `hold`, a descriptor from
// HoldCarried stays open and keeps the memory alive.
CUresult ReleaseCarried(uint32_t index, bool hold);
// Maps all held memory again. Stops at the first error.
CUresult TakeBackCarried();
// Maps the memory behind `fd`, which stays the caller's, at the item's addresses. After an error
// the item is not mapped, as before the call.
CUresult MapCarried(uint32_t index, int fd);
// Replaces imported memory by a copy in new memory of this process. After an error the item is
// unchanged. If the driver cannot map the imported memory again, the item is instead unmapped, and
// its descriptor is still held.
CUresult OwnCarried(uint32_t index);
bool IsMapped(uint32_t index);
// Releases the memory that an incomplete resume has mapped, because the next attempt maps all
// memory again and needs the room. Memory that the driver does not release stays mapped.
void DropReturned();

// Drops all state in a forked child.
void ResetCarrier();

// Returns true if the program has not closed any descriptor of an imported handle.
bool KeptAreIntact();

// Returns true if memory that a resume imported is mapped. May be called in any state of the gate.
bool ImportedAreMapped();

// Fills in the numbers and sizes of the ranges, for each device and in total. May be called in any
// state of the gate.
void CountCarried(agent_protocol::HelloReply* reply);

}  // namespace stasis::agent
