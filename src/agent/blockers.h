// Blockers: reasons why the agent cannot carry this program's memory. The agent notes a blocker
// when it occurs. While there is one, the agent refuses a suspend before it closes the gate.
//
// Safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "agent_protocol/protocol.h"

namespace stasis::agent {

// `what` names the cause; the text of Blockers lists the first few causes of each kind.
void NoteBlocker(agent_protocol::Blocker blocker, const char* what);
// Removes one note of the blocker. The blocker is gone when all of its notes are removed.
void ForgetBlocker(agent_protocol::Blocker blocker);
// Returns the bits of all blockers, and in `text` a sentence about the first blocker, or "".
uint32_t Blockers(char* text, size_t size);
// Removes all blockers, in a forked child.
void ResetBlockers();

}  // namespace stasis::agent
