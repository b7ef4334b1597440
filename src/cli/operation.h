// Code shared by commands that run an operation: options, progress and summary.
#pragma once

#include "api/attach.h"
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

// Adds --assume-unshared to suspend or dump.
void AddAssumeUnshared(App verb, bool& assume);

// --arena-limit of dump and restore.
struct ArenaLimitFlag {
  std::string text;

  void AddTo(App verb);
  Result<uint64_t> Bytes() const;  // 0 if it was not given
};

// The state folder and socket of container runtimes, for a TARGET that is a container.
struct PlaceFlags {
  std::string root;
  std::string containerd_address;

  void AddTo(App verb);
  v1::ContainerPlaces ToMessage() const;
};

// --gpu-map and --gpus of resume, restore and `run --or-restore`.
struct GpuFlags {
  std::string map;
  std::string gpus;

  // `when` begins their help texts.
  void AddTo(App verb, const std::string& when = "");
  // Returns the granted GPUs: those of --gpus, or with `--gpu-map auto` those of this process's
  // CUDA_VISIBLE_DEVICES. Empty: all.
  std::string Granted() const;
};

inline constexpr char kTargetHelp[] =
    "A job, a process id, or a container: podman:NAME, containerd:[NAMESPACE/]ID, runc:ID";

// Exit code of a check with a finding `cannot`.
inline constexpr int kUnable = 5;
// Formats a finding of `check` and `container check`.
std::string FindingText(const v1::CheckResponse::Finding& finding);

// TARGET as typed: `llama`, or with its kind as in other tools: `job llama`, `process 4711`.
struct TargetWords {
  std::vector<std::string> words;

  void AddTo(App verb, const std::string& name, const std::string& help);
  Result<std::string> Name() const;
};

// Accepts an option of other tools that has no effect here, because GPUs are always enabled.
void AddGpuEnabled(App verb);

// Options of commands that attach to a job.
struct AttachFlags {
  std::string detach_keys;
  bool watch = false;

  void AddTo(App verb);
  v1::AttachOptions ToMessage() const;
};
// Returns a function that prints notes, or nothing with --quiet.
api::Note NoteFor(const Globals& globals);

// Connects to the daemon if one is running; otherwise this process does the work.
Result<api::Client> OpenClient(const Globals& globals);
// Prepares a call that this process always runs itself, with its own rights and without the daemon.
Result<api::Call> OpenCall(const Globals& globals);

// Runs `operation` with progress on stderr, treats Ctrl-C as a request to cancel, calls `done` with
// the result, and prints the result.
using OperationBody = std::function<Result<v1::OperationResult>(api::Client&, const api::OnEvent&)>;
Outcome RunOperation(const Globals& globals, const OperationBody& operation,
                     const std::function<void(const v1::OperationResult&)>& done = {});
// Restores, prints the account, and returns the name of the restored job.
Result<std::string> RunRestore(const Globals& globals, const v1::RestoreRequest& request);

}  // namespace stasis::cli
