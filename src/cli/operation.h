// What the verbs that run an operation share: their options, their progress, their account.
#pragma once

#include "cli/verb.h"
#include "coordinator/operations.h"

namespace stasis::cli {

// --timeout, --dry-run, --ignore-memory.
struct CommonOptions {
  double timeout_s = 0;
  bool dry_run = false;
  bool ignore_memory = false;

  void AddTo(CLI::App& verb);
};

// The options of dump and restore that go to CRIU.
struct CriuFlags {
  std::string tcp = "refuse";
  bool file_locks = false;
  bool link_remap = false;
  std::vector<std::string> external;
  std::vector<std::string> criu_opts;

  void AddTo(CLI::App& verb);
  Result<criu::Options> Parse() const;
};

// A job's id or a process id, as cli.md tells them apart.
Result<coordinator::Target> ParseTarget(const Paths& paths, const std::string& text);

// From here on Ctrl-C and its like only set what Interrupted() says.
void CatchInterrupts();
bool Interrupted();

// Opens a session, runs `operation` in it with progress on stderr and Ctrl-C as a wish to cancel,
// and prints the account. `what` is "dump llama": the error's context.
using OperationBody = std::function<Result<coordinator::OperationResult>(
    coordinator::Session&, const coordinator::OperationOptions&)>;
Outcome RunOperation(const Globals& globals, const CommonOptions& common, const std::string& verb,
                     const std::string& what, const OperationBody& operation);

}  // namespace stasis::cli
