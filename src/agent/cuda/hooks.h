// Maps the names of driver functions to the agent's hooks.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

struct Function {
  const char* name;  // the exported symbol
  void* ours;        // null if the agent calls the function but does not hook it
  bool vital;        // reaches device memory, so an unhooked version of it is a blocker
};
extern Function g_functions[kFunctionCount];

// Adds the STASIS_HOOK_UNGATED hooks. Called before each use of the table. Safe to call from any
// thread, since all threads write the same values.
void CompleteFunctionTable();

}  // namespace stasis::agent
