// Answers commands of other tools with an explanation instead of a syntax error.
// docs/coming-from.md lists these commands.
#include <map>
#include <string>

#include "cli/verb.h"

namespace stasis::cli {
namespace {

struct Habit {
  const char* verb;
  const char* inner;   // its subcommand
  const char* answer;  // why nothing needs to be done
};
constexpr Habit kHabits[] = {
    {"plugin", "install",
     "GPU support is built in, and there is nothing to install; `stasis check` checks this "
     "machine"},
    {"plugin", "list", "GPU support is built in; there are no plugins"},
};

Outcome Answer(const Globals& globals, const Habit& habit) {
  PrintResult(globals, habit.answer, {{"answer", habit.answer}});
  return 0;
}

}  // namespace

void RegisterHabits(App app, const std::function<void(Action)>& select) {
  std::map<std::string, App> verbs;
  for (const Habit& habit : kHabits) {
    auto verb = verbs.find(habit.verb);
    if (verb == verbs.end()) {
      verb = verbs.emplace(habit.verb, app.add_subcommand(habit.verb, "")->group("")).first;
      verb->second.require_subcommand(1);
    }
    auto answering = verb->second.add_subcommand(habit.inner, "");
    // Accepts any further words.
    answering->add_ignored_words("WORDS")->group("");
    answering->callback([=, &habit] {
      select([&habit](const Globals& globals) { return Answer(globals, habit); });
    });
  }
}

}  // namespace stasis::cli
