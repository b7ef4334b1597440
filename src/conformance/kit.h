// The conformance run of an AMD GPU: detection, facts that Stasis relies on, suspend and resume,
// dump and restore of a program that checks its own memory.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "conformance/commands.h"
#include "conformance/machine.h"
#include "conformance/report.h"

namespace stasis::conformance {

struct KitOptions {
  std::string version;  // of Stasis
  std::string began;
  Facts machine;
  std::vector<std::string> render_nodes;
  // All steps together. Steps for which no time is left are skipped.
  std::chrono::seconds limit{540};
  std::function<bool()> cancelled = [] { return false; };
  // Called at the start, before each step, which `unfinished` names, and at the end. After an error
  // at the start nothing is run.
  std::function<Status(const Report&)> save = [](const Report&) { return Status(); };
  std::function<void(const Step&)> done = [](const Step&) {};
};

// Runs all steps; a failed step does not stop the run. Leaves no process and no file behind, except
// what the last step names. Returns the error of `save`.
Result<Report> RunKit(const KitOptions& options, Commands& commands);

}  // namespace stasis::conformance
