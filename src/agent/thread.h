// The agent's own threads: every signal blocked, detached, named.
#pragma once

namespace stasis::agent {

bool StartThread(const char* name, void* (*run)(void*), void* argument);

}  // namespace stasis::agent
