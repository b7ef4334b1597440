// Code shared by commands that run an operation: options, progress and summary.
#pragma once

#include "api/client.h"
#include "cli/verb.h"

namespace stasis::cli {

// --timeout, --dry-run, --ignore-memory.
struct CommonOptions {
  double timeout_s = 0;
  bool dry_run = false;
  bool ignore_memory = false;

  void AddTo(App verb);
  v1::OperationOptions ToMessage() const;
};

// Options of dump and restore that are passed to CRIU.
struct CriuFlags {
  std::string tcp = "refuse";
  bool file_locks = false;
  bool link_remap = false;
  std::vector<std::string> external;
  std::vector<std::string> criu_opts;

  void AddTo(App verb);
  v1::CriuOptions ToMessage() const;
};

// --assume-unshared of suspend and dump.
void AddAssumeUnshared(App verb, bool& assume);

// TARGET as typed: `llama`, or preceded by its kind, as in other tools: `job llama`, `process
// 4711`.
struct TargetWords {
  std::vector<std::string> words;

  void AddTo(App verb, const std::string& name, const std::string& help);
  Result<std::string> Name() const;
};

// An option of other tools that is accepted without effect: GPUs are always enabled.
void AddGpuEnabled(App verb);

// The daemon, where one runs; else this process.
Result<api::Client> OpenClient(const Globals& globals);

// Does `operation` with progress on stderr and Ctrl-C as a wish to cancel, and prints its account.
// `done` sees the result before that.
using OperationBody = std::function<Result<v1::OperationResult>(api::Client&, const api::OnEvent&)>;
Outcome RunOperation(const Globals& globals, const OperationBody& operation,
                     const std::function<void(const v1::OperationResult&)>& done = {});

}  // namespace stasis::cli
