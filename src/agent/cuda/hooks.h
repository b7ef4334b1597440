// The hook table.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

struct Function {
  const char* name;  // the exported symbol
  void* ours;        // null: not hooked, only called by us
  bool vital;        // reaches device memory: a version of it that passes no gate is a danger
};
extern Function g_functions[kFunctionCount];

// Enters the hooks that pass no gate. Before the first use of the table.
void CompleteFunctionTable();

}  // namespace stasis::agent
