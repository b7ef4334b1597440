// What stands in the way of carrying this program's memory. Noted when it happens, told when
// somebody asks for a suspend, which is then refused before the gate closes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/protocol.h"

namespace stasis::agent {

// `what` is kept from the first note of all.
void NoteBlocker(wire::Blocker blocker, const char* what);
// For what can go away again: all but kBlockerUnknownFunction count.
void ForgetBlocker(wire::Blocker blocker);
// The bits, and a sentence about them ("" when there are none).
uint32_t Blockers(char* text, size_t size);
void ResetBlockers();

}  // namespace stasis::agent
