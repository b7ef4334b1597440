// The command line. Each command is a row of kVerbs; main parses the arguments, runs one command,
// and converts its error to text and an exit code (see ExitCode in base/result.h).
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>

#include "base/descriptor_table.h"
#include "base/rights.h"
#include "cli/cuda_checkpoint.h"
#include "cli/parser_words.h"
#include "cli/verb.h"

namespace stasis::cli {
namespace {

struct VerbRow {
  Register add;
  bool needs_config = true;  // requires a valid configuration
};

// The commands, in the order of the help text.
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
    {RegisterMigrate},
    {RegisterReceive},
    {RegisterImage},
    {RegisterRepo},
    {RegisterKey},
    {RegisterArena},
    {RegisterShare},
    {RegisterGpu},
    {RegisterCheck},
    {RegisterContainer},
    {RegisterCdi},
    {RegisterSlurm},
    {RegisterRecover},
    {RegisterBench},
    {RegisterConfig},
    {RegisterVersion, false},
    {RegisterCompletion, false},
    {RegisterHelp, false},
    {RegisterDaemon},
    {RegisterHabits},
};

// Rejects empty arguments. They come from unset variables in scripts and must not act like a
// missing argument.
void RefuseEmptyWords(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& word : option->results()) {
      if (word.empty()) throw CLI::ValidationError(option->get_name() + " is empty");
    }
  }
  for (const CLI::App* verb : app.get_subcommands()) RefuseEmptyWords(*verb);
}

// Runs the action. Catches all exceptions of libraries, because they must not end the program
// without a message.
Outcome Run(const Action& action, const Globals& globals) {
  try {
    return action(globals);
  } catch (const std::exception& error) {
    return Fail(Code::kInternal, std::string("internal error: ") + error.what(),
                "`stasis recover` undoes an unfinished operation");
  }
}

Outcome WithConfig(const Action& action, Globals& globals) {
  STASIS_ASSIGN(globals.config, config::Load());
  return Run(action, globals);
}

// Finds the program's command line in a `run` command without `--`. It starts at the first word
// that is neither an option nor an option's value. Returns `end` if there is no such word, or for
// other commands.
char** FindCommand(const CLI::App& app, char** argv, char** end) {
  const CLI::App* verb = &app;
  for (char** word = argv + 1; word < end; ++word) {
    if ((*word)[0] == '-') {
      if (WantsNextWord(*verb, app, *word)) ++word;
    } else if (verb != &app) {
      return word;
    } else if (verb = FindVerb(app, *word); verb == nullptr || verb->get_name() != "run") {
      return end;
    }
  }
  return end;
}

// Returns advice for a parser error.
std::string UsageHint(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* verb = &app;
  std::string whole = app.get_name();
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    whole += " " + verb->get_name();
  }
  std::vector<std::string> options;
  for (const CLI::Option* option : ShownOptions(*verb, app)) {
    for (std::string& name : NamesOf(*option)) options.push_back(std::move(name));
  }
  for (const std::string& typed : app.remaining(/*recurse=*/true)) {
    const bool is_option = typed.starts_with('-');
    std::string hint =
        DidYouMean(typed.substr(0, typed.find('=')), is_option ? options : VerbNames(*verb));
    if (!hint.empty()) return hint;
  }
  const bool unexpected = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (unexpected && verb->get_name() == "run") {
    return "Put the program and all its arguments after `--`.";
  }
  return verb == &app ? "`stasis --help` lists the commands."
                      : "`" + whole + " --help` explains this command.";
}

// Checks that all output was written, because scripts rely on it. Returns the exit code: `code`, or
// 1 instead of 0 after a failed write.
int Finish(int code, const std::string& hint = {}) {
  Status written = FinishOutput();
  if (written) return code;
  PrintError({}, std::move(written).error().WithHint(hint));
  return code == 0 ? 1 : code;
}

int Main(int argc, char** argv) {
  // A closed pipe must cause a write error and not kill the process in the middle of a plan.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  WidenDescriptorTable();

  CLI::App app("Suspends, saves, moves and restores running GPU programs without changing them.",
               "stasis");
  // Let the parser accept a missing command, and reject it below. The parser would report a missing
  // command even if the mistake is an unknown word.
  app.require_subcommand(0, 1);
  app.fallthrough();
  Globals globals;
  app.add_flag("--json", globals.json, "Print results as JSON");
  app.add_flag("-q,--quiet", globals.quiet, "Print no progress on stderr");

  app.add_flag("--no-daemon", globals.no_daemon,
               "Do the work in this process, even if a daemon is running");

  Action action;
  bool needs_config = false;
  for (const VerbRow& row : kVerbs) {
    row.add(App(&app), [&, needs = row.needs_config](Action a) {
      action = std::move(a);
      needs_config = needs;
    });
  }

  // Hides the job's command line from the parser, which would treat `[a,b]` as a list.
  char** const end = argv + argc;
  char** separator = std::find(argv, end, std::string_view("--"));
  const bool separated = separator != end;
  char** const command = separated ? separator + 1 : FindCommand(app, argv, end);
  globals.command.assign(command, end);
  argc = static_cast<int>((separated ? separator : command) - argv);

  try {
    app.parse(argc, argv);
    if (separated && !app.got_subcommand("run") && !app.got_subcommand(kCompleteVerb)) {
      throw CLI::ExtrasError({"--"});
    }
    RefuseEmptyWords(app);
    if (!action) throw CLI::RequiredError("A command");
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return Finish(app.exit(error));  // --help
    // The parser may have stopped before it reached --json.
    for (int i = 1; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
      globals.json |= std::strcmp(argv[i], "--json") == 0;
    }
    auto usage = FailUsage(error.what(), UsageHint(app, error));
    PrintError(globals, usage.value());
    return Finish(2);
  }
  Outcome outcome = needs_config ? WithConfig(action, globals) : Run(action, globals);
  if (outcome) return Finish(*outcome, "The command itself succeeded.");
  PrintError(globals, outcome.error());
  return Finish(ExitCode(outcome.error()));
}

}  // namespace
}  // namespace stasis::cli

int main(int argc, char** argv) {
  stasis::HoldRights();
  // libexec/compat has a link to this program with the name of NVIDIA's tool.
  const bool is_drop_in =
      argc > 0 && std::filesystem::path(argv[0]).filename() == stasis::cli::kCudaCheckpoint;
  try {
    return is_drop_in ? stasis::cli::CudaCheckpoint(argc, argv) : stasis::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: internal error: %s\n",
                 is_drop_in ? stasis::cli::kCudaCheckpoint : "stasis", error.what());
  }
  return is_drop_in ? 999 % 256 : 1;
}
