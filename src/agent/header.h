// The agent's header, which clients read from outside without waiting for an answer
// (agent_protocol::AgentHeader).
#pragma once

#include <cstdint>

#include "agent_protocol/protocol.h"

extern "C" stasis::agent_protocol::AgentHeader stasis_agent_header;

namespace stasis::agent {

// Sets the bits `mask` of agent_protocol::HeaderMemory to `bits`. Safe to call from any thread:
// several threads change bits of the header.
inline void NoteInHeader(uint32_t mask, uint32_t bits) {
  uint32_t* memory = &stasis_agent_header.memory;
  uint32_t before = __atomic_load_n(memory, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(memory, &before, (before & ~mask) | bits, false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
}

}  // namespace stasis::agent
