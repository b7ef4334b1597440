// Giving the memory away and taking it back. Only the control thread, only while the gate is closed
// and everything is drained: nothing changes but by its hand.
#pragma once

#include "agent/cuda/memory.h"
#include "wire/protocol.h"

namespace stasis::agent {

// Lists everything that will travel; the order holds until the next call. false: no memory.
bool ListCarried();
uint32_t CarriedCount();
wire::Range DescribeCarried(uint32_t index);

// A descriptor of its memory, the caller's to close.
CUresult ExportCarried(uint32_t index, int* fd);
// Keeps a descriptor of its memory here, whatever is released and sent away.
CUresult HoldCarried(uint32_t index);
// The device of that memory is another GPU since; told once all of it is back.
void MoveCarried(uint32_t index, const wire::Uuid& gpu);
void SettleMoves();
// Closes what is held of released memory: from here on, it is others who keep it alive.
void LetGoOfCarried();
// Unmaps and releases it. Its addresses stay reserved.
CUresult ReleaseCarried(uint32_t index, bool hold);
// Takes back what is held. Stops at the first error.
CUresult TakeBackCarried();
// Takes `fd` (which stays the caller's) as its memory and maps it where it was. On an error it is
// as released as before.
CUresult MapCarried(uint32_t index, int fd);
// Of memory that came back: copies it into memory of our own making, which takes its place. On an
// error it is as it was; only where the driver will not map it again it is unmapped, and held.
CUresult OwnCarried(uint32_t index);
bool IsMapped(uint32_t index);
// Gives up what came back since the release by a map that did not complete: who tries again brings
// all of the memory anew and needs the room. What the driver will not let go stays mapped.
void DropReturned();

void AbandonListAfterFork();

// No descriptor of an imported handle was closed by the program.
bool KeptAreIntact();

// Whether memory that came back by a resume is there.
bool ImportedAreMapped();

// For the account, at any time.
void CountCarried(wire::HelloReply* reply);

}  // namespace stasis::agent
