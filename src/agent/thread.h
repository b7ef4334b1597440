// The agent's own threads: every signal blocked, detached, named.
#pragma once

namespace stasis::agent {

// Names have at most 15 characters.
bool StartThread(const char* name, void* (*run)(void*), void* argument);
void NameThread(const char* name);  // the calling one

}  // namespace stasis::agent
