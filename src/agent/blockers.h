// Blockers: reasons why the agent cannot carry this program's memory. They are noted when they
// occur. A request to suspend is refused before the gate closes while there is one.
//
// Safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "agent_protocol/protocol.h"

namespace stasis::agent {

// `what` names the cause; the text of Blockers lists the first few causes of each kind.
void NoteBlocker(agent_protocol::Blocker blocker, const char* what);
// Takes one note of the blocker back. It is gone when all of its notes are taken back.
void ForgetBlocker(agent_protocol::Blocker blocker);
// Returns the bits of all blockers. `text` gets a sentence about the first one, or "".
uint32_t Blockers(char* text, size_t size);
// For a forked child: there is no blocker.
void ResetBlockers();

}  // namespace stasis::agent
