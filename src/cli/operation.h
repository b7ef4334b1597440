// What the verbs that run an operation share: their options, their progress, their account.
#pragma once

#include "cli/verb.h"
#include "client/client.h"

namespace stasis::cli {

// --timeout, --dry-run, --ignore-memory.
struct CommonOptions {
  double timeout_s = 0;
  bool dry_run = false;
  bool ignore_memory = false;

  void AddTo(App verb);
  v1::OperationOptions ToMessage() const;
};

// The options of dump and restore that go to CRIU.
struct CriuFlags {
  std::string tcp = "refuse";
  bool file_locks = false;
  bool link_remap = false;
  std::vector<std::string> external;
  std::vector<std::string> criu_opts;

  void AddTo(App verb);
  v1::CriuOptions ToMessage() const;
};

// --assume-unshared, of suspend and dump.
void AddAssumeUnshared(App verb, bool& assume);

// TARGET as it is typed: `llama`, or with the kind before it that other tools want: `job llama`,
// `process 4711`.
struct TargetWords {
  std::vector<std::string> words;

  void AddTo(App verb, const std::string& name, const std::string& help);
  Result<std::string> Name() const;
};

// Accepted and without effect, from other tools: nothing has to be said for a GPU to be used.
void AddGpuEnabled(App verb);

// The daemon, where one runs; else this process.
Result<client::Client> OpenClient(const Globals& globals);

// Does `operation` with progress on stderr and Ctrl-C as a wish to cancel, and prints its account.
// `done` sees the result before that.
using OperationBody =
    std::function<Result<v1::OperationResult>(client::Client&, const client::OnEvent&)>;
Outcome RunOperation(const Globals& globals, const OperationBody& operation,
                     const std::function<void(const v1::OperationResult&)>& done = {});

}  // namespace stasis::cli
