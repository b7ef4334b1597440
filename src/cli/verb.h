// What every verb of the command line has in common. One file per verb (`verb_<name>.cc`): it adds
// its subcommand with its own usage text and hands back what to run. `stasis_main.cc` walks the
// table.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "cli/arguments.h"
#include "config/load.h"
#include "config/open_paths.h"

namespace stasis::cli {

// Options that come before or after any verb.
struct Globals {
  bool json = false;       // one JSON document on stdout instead of text
  bool quiet = false;      // no progress on stderr
  bool no_daemon = false;  // the work is done by this process, also where a daemon runs
  // Never set by the user: stdout belongs to an attached program.
  bool result_on_stderr = false;
  // What follows a bare `--`: a program and its arguments, as they were typed.
  std::vector<std::string> command;
  // Only of verbs that need it: see kVerbs in stasis_main.cc.
  config::Config config;

  const config::Settings& settings() const { return config.settings; }
};

inline Result<Paths> OpenPaths(const Globals& globals) {
  return config::OpenPaths(globals.settings());
}

// What a verb returns: its own exit code (attached programs have one), or the error that main
// prints.
using Outcome = Result<int>;
using Action = std::function<Outcome(const Globals&)>;

// Adds a subcommand to `app`; `select` must be called in the subcommand's callback with what to
// run.
using Register = void (*)(App app, const std::function<void(Action)>& select);

void RegisterVersion(App app, const std::function<void(Action)>& select);
void RegisterArena(App app, const std::function<void(Action)>& select);
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
void RegisterDump(App app, const std::function<void(Action)>& select);
void RegisterRestore(App app, const std::function<void(Action)>& select);
void RegisterCheck(App app, const std::function<void(Action)>& select);
void RegisterRecover(App app, const std::function<void(Action)>& select);
void RegisterCompletion(App app, const std::function<void(Action)>& select);
void RegisterConfig(App app, const std::function<void(Action)>& select);
void RegisterDaemon(App app, const std::function<void(Action)>& select);
void RegisterHabits(App app, const std::function<void(Action)>& select);
void RegisterBench(App app, const std::function<void(Action)>& select);

// The result on stdout: `text` as it is, or `document` with --json.
void PrintResult(const Globals& globals, const std::string& text, const nlohmann::json& document);
// Progress and notes. A terminal that went away is no failure of ours, so this never throws.
void PrintStderr(const std::string& text);
// An error on stderr, and with --json also as a document on stdout: {"error": {...}}.
void PrintError(const Globals& globals, const Error& error);
nlohmann::json ToJson(const Error& error);

// "1.2 GiB", "0.66 s", "54.1 GB/s".
std::string FormatBytes(uint64_t bytes);
std::string FormatSeconds(double seconds);

// What the user typed is wrong: exit code 2.
inline tl::unexpected<Error> FailUsage(std::string message, std::string hint = {}) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0, std::move(message), std::move(hint));
}

}  // namespace stasis::cli
