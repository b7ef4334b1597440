#include <memory>

#include "cli/completion.h"
#include "cli/verb.h"
#include "jobs/store.h"
#include "store/store_folder.h"

namespace stasis::cli {
namespace {

struct ShellRow {
  const char* name;
  std::string (*script)(const VerbModel&);
};
constexpr ShellRow kShells[] = {
    {"bash", BashCompletion}, {"zsh", ZshCompletion}, {"fish", FishCompletion}};

// For the scripts; who completes a word wants to hear of no error.
Outcome PrintNames(const Globals& globals, const std::string& kind) {
  std::vector<std::string> names;
  STASIS_ASSIGN(config::Config config, config::Load());
  STASIS_ASSIGN(Paths paths, config::OpenPaths(config.settings));
  if (kind == "jobs") {
    STASIS_ASSIGN(auto jobs, jobs::Store(paths.jobs()).List());
    for (const auto& job : jobs) names.push_back(job.id);
  } else {
    STASIS_ASSIGN(names, store::ListImages(paths.images()));
  }
  std::string text;
  for (const auto& name : names) text += name + "\n";
  if (!names.empty() || globals.json) PrintResult(globals, text, {{"names", names}});
  return 0;
}

}  // namespace

void RegisterCompletion(App app, const std::function<void(Action)>& select) {
  struct Options {
    std::string shell, names;
  };
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand("completion",
                                 "Print a script that lets your shell complete commands of stasis");
  auto shell = verb->add_option("SHELL", options->shell, "bash, zsh or fish")
                   ->one_of({"bash", "zsh", "fish"});
  verb->add_option("--names", options->names,
                   "What the scripts ask for: jobs or images, one a line")
      ->one_of({"jobs", "images"})
      ->excludes(shell);
  verb->callback([=, program = app] {
    select([=](const Globals& globals) -> Outcome {
      if (!options->names.empty()) return PrintNames(globals, options->names);
      for (const ShellRow& row : kShells) {
        if (options->shell != row.name) continue;
        const std::string script = row.script(ModelOf(program.parser()));
        PrintResult(globals, script, {{"shell", row.name}, {"script", script}});
        return 0;
      }
      return FailUsage("for which shell?", "stasis completion bash, zsh or fish");
    });
  });
}

}  // namespace stasis::cli
