// The common interface of all commands. Each has one file (`verb_<name>.cc`), which adds its
// subcommand with its usage text and supplies the function to run. `stasis_main.cc` has the table
// of commands.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/usage_error.h"
#include "base/paths.h"
#include "base/result.h"
#include "cli/arguments.h"
#include "config/load.h"
#include "config/open_paths.h"

namespace stasis::cli {

// Options that may precede or follow any command.
struct Globals {
  bool json = false;       // print one JSON document on stdout instead of text
  bool quiet = false;      // print no progress on stderr
  bool no_daemon = false;  // do the work in this process even if a daemon runs
  // Set internally while stdout belongs to an attached program.
  bool result_on_stderr = false;
  // The words after `--`: a program and its arguments.
  std::vector<std::string> command;
  // Set only for commands that need the configuration; see kVerbs in stasis_main.cc.
  config::Config config;

  const config::Settings& settings() const { return config.settings; }
};

inline Result<Paths> OpenPaths(const Globals& globals) {
  return config::OpenPaths(globals.settings());
}

// The result of a command: an exit code, which may be that of an attached program, or an error that
// main prints.
using Outcome = Result<int>;
using Action = std::function<Outcome(const Globals&)>;

// Adds a subcommand to `app`. The subcommand's callback must pass the function to run to `select`.
using Register = void (*)(App app, const std::function<void(Action)>& select);

void RegisterVersion(App app, const std::function<void(Action)>& select);
void RegisterArena(App app, const std::function<void(Action)>& select);
void RegisterRepo(App app, const std::function<void(Action)>& select);
void RegisterKey(App app, const std::function<void(Action)>& select);
void RegisterShare(App app, const std::function<void(Action)>& select);
void RegisterGpu(App app, const std::function<void(Action)>& select);
void RegisterImage(App app, const std::function<void(Action)>& select);
void RegisterRun(App app, const std::function<void(Action)>& select);
void RegisterManage(App app, const std::function<void(Action)>& select);
void RegisterPs(App app, const std::function<void(Action)>& select);
void RegisterInspect(App app, const std::function<void(Action)>& select);
void RegisterCheckpoints(App app, const std::function<void(Action)>& select);
void RegisterAttach(App app, const std::function<void(Action)>& select);
void RegisterLogs(App app, const std::function<void(Action)>& select);
void RegisterWait(App app, const std::function<void(Action)>& select);
void RegisterKill(App app, const std::function<void(Action)>& select);
void RegisterDelete(App app, const std::function<void(Action)>& select);
void RegisterSuspend(App app, const std::function<void(Action)>& select);
void RegisterResume(App app, const std::function<void(Action)>& select);
void RegisterMigrate(App app, const std::function<void(Action)>& select);
void RegisterReceive(App app, const std::function<void(Action)>& select);
void RegisterDump(App app, const std::function<void(Action)>& select);
void RegisterRestore(App app, const std::function<void(Action)>& select);
void RegisterCheck(App app, const std::function<void(Action)>& select);
void RegisterContainer(App app, const std::function<void(Action)>& select);
void RegisterCdi(App app, const std::function<void(Action)>& select);
void RegisterSlurm(App app, const std::function<void(Action)>& select);
void RegisterRecover(App app, const std::function<void(Action)>& select);
void RegisterCompletion(App app, const std::function<void(Action)>& select);
void RegisterConfig(App app, const std::function<void(Action)>& select);
void RegisterDaemon(App app, const std::function<void(Action)>& select);
void RegisterHabits(App app, const std::function<void(Action)>& select);
void RegisterHelp(App app, const std::function<void(Action)>& select);
void RegisterBench(App app, const std::function<void(Action)>& select);

// A hidden command for the scripts of `stasis completion`.
inline constexpr char kCompleteVerb[] = "__complete";

// Prints the result on stdout: `text`, or `document` with --json.
void PrintResult(const Globals& globals, const std::string& text, const nlohmann::json& document);
// Call once at the end. Returns an error if a result could not be written to stdout.
Status FinishOutput();
// Prints progress and notes. Never throws: a closed terminal is not an error.
void PrintStderr(const std::string& text);
// Prints an error on stderr, and with --json also as a document on stdout: {"error": {...}}.
void PrintError(const Globals& globals, const Error& error);
nlohmann::json ToJson(const Error& error);

// Returns a hint with the entry of `known` that is most similar to `typed`, or an empty string if
// none is similar.
std::string DidYouMean(const std::string& typed, const std::vector<std::string>& known);

// Format as "1.2 GiB" and "0.66 s".
std::string FormatBytes(uint64_t bytes);
std::string FormatSeconds(double seconds);
// Formats as "1.2 GiB of 2.4 GiB, 54.1 GiB/s, 0.66 s left".
std::string FormatProgress(uint64_t done, uint64_t total, double seconds);

using api::FailUsage;

}  // namespace stasis::cli
