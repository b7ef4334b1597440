#include <CLI/CLI.hpp>
#include <memory>

#include "cli/parser_words.h"
#include "cli/verb.h"

namespace stasis::cli {
namespace {

Outcome Help(const CLI::App& program, const std::vector<std::string>& path) {
  const CLI::App* verb = &program;
  std::string whole = program.get_name();
  for (const std::string& name : path) {
    const CLI::App* inner = FindVerb(*verb, name);
    if (inner == nullptr) {
      return FailUsage(whole + " has no command " + name, DidYouMean(name, VerbNames(*verb)));
    }
    verb = inner;
    whole += " " + verb->get_name();
  }
  // App::help() would describe the parsed command, which is `help`.
  PrintResult({}, verb->get_formatter()->make_help(verb, whole, CLI::AppFormatMode::Normal), {});
  return 0;
}

}  // namespace

void RegisterHelp(App app, const std::function<void(Action)>& select) {
  auto path = std::make_shared<std::vector<std::string>>();
  auto verb = app.add_subcommand("help", "Print the help of a command");
  verb->add_option("COMMAND", *path, "Such as `dump` or `image ls`");
  verb->callback([=, program = app] {
    select([=](const Globals&) { return Help(program.parser(), *path); });
  });
}

}  // namespace stasis::cli
