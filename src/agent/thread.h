// The agent's own threads. They are detached and named, and block all signals.
#pragma once

namespace stasis::agent {

// Starts a thread that calls run(argument). `name` has at most 15 characters. Returns false if the
// thread cannot be started.
bool StartThread(const char* name, void* (*run)(void*), void* argument);
// Names the calling thread.
void NameThread(const char* name);

}  // namespace stasis::agent
