// The command line. Every verb is a row of kVerbs; main parses, runs one, and turns its error into
// words and an exit code (see ExitCode in base/result.h).
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>

#include "base/descriptor_table.h"
#include "base/rights.h"
#include "cli/verb.h"

namespace stasis::cli {
namespace {

struct VerbRow {
  Register add;
  bool needs_config = true;  // and does nothing when there is a mistake in it
};

// In the order of the help text.
constexpr VerbRow kVerbs[] = {
    {RegisterRun},
    {RegisterManage},
    {RegisterPs},
    {RegisterInspect},
    {RegisterCheckpoints},
    {RegisterAttach},
    {RegisterLogs},
    {RegisterWait},
    {RegisterKill},
    {RegisterDelete},
    {RegisterSuspend},
    {RegisterResume},
    {RegisterDump},
    {RegisterRestore},
    {RegisterImage},
    {RegisterArena},
    {RegisterGpu},
    {RegisterCheck},
    {RegisterRecover},
    {RegisterBench},
    {RegisterConfig},
    {RegisterVersion, false},
    {RegisterCompletion, false},
    {RegisterDaemon},
    {RegisterHabits},
};

// An empty word is what a script's unset variable leaves; never a wish for what would be without
// it.
void RefuseEmptyWords(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& word : option->results()) {
      if (word.empty()) throw CLI::ValidationError(option->get_name() + " is empty");
    }
  }
  for (const CLI::App* verb : app.get_subcommands()) RefuseEmptyWords(*verb);
}

// No library's exception ends us without a word.
Outcome Run(const Action& action, const Globals& globals) {
  try {
    return action(globals);
  } catch (const std::exception& error) {
    return Fail(Code::kInternal, std::string("an error of ours: ") + error.what(),
                "`stasis recover` undoes what may be left half-way");
  }
}

Outcome WithConfig(const Action& action, Globals& globals) {
  STASIS_ASSIGN(globals.config, config::Load());
  return Run(action, globals);
}

int Main(int argc, char** argv) {
  HoldRights();
  // A reader of ours that went away is an error of a write, never a death in the middle of a plan.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  WidenDescriptorTable();

  CLI::App app("Suspends, saves, moves and restores running GPU programs, without changing them.",
               "stasis");
  // None is refused below: the parser would complain of that before it looks at a word it cannot
  // place.
  app.require_subcommand(0, 1);
  app.fallthrough();
  Globals globals;
  app.add_flag("--json", globals.json, "Print results as JSON");
  app.add_flag("-q,--quiet", globals.quiet, "No progress on stderr");

  app.add_flag("--no-daemon", globals.no_daemon, "Work without the daemon, also where one runs");

  Action action;
  bool needs_config = false;
  for (const VerbRow& row : kVerbs) {
    row.add(App(&app), [&, needs = row.needs_config](Action a) {
      action = std::move(a);
      needs_config = needs;
    });
  }

  // The program's own arguments are never looked at: the parser would take `[a,b]` for a list.
  char** separator = std::find(argv, argv + argc, std::string_view("--"));
  bool separated = separator != argv + argc;
  if (separated) globals.command.assign(separator + 1, argv + argc);
  argc = static_cast<int>(separator - argv);

  try {
    app.parse(argc, argv);
    if (separated && !app.got_subcommand("run")) {
      throw CLI::ExtrasError({"--"});
    }
    RefuseEmptyWords(app);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A verb");
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    // What came before the mistake may not have been parsed.
    for (int i = 1; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
      globals.json |= std::strcmp(argv[i], "--json") == 0;
    }
    auto usage = FailUsage(error.what(), "Run `stasis --help`, or `stasis VERB --help`.");
    PrintError(globals, usage.value());
    return 2;
  }
  Outcome outcome = needs_config ? WithConfig(action, globals) : Run(action, globals);
  if (outcome) return *outcome;
  PrintError(globals, outcome.error());
  return ExitCode(outcome.error());
}

}  // namespace
}  // namespace stasis::cli

int main(int argc, char** argv) { return stasis::cli::Main(argc, argv); }
