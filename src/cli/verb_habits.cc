// Commands of other tools: what is typed by habit gets an answer instead of a complaint about
// words. docs/coming-from.md lists them all.
#include <map>
#include <string>

#include "cli/verb.h"

namespace stasis::cli {
namespace {

struct Row {
  const char* verb;
  const char* inner;   // its sub-verb
  const char* answer;  // why there is nothing to do
};
constexpr Row kRows[] = {
    {"plugin", "install",
     "GPU support is built in, and there is nothing to install; `stasis check` looks at this "
     "machine"},
    {"plugin", "list", "GPU support is built in; there are no plugins"},
};

Outcome Answer(const Globals& globals, const Row& row) {
  PrintResult(globals, row.answer, {{"answer", row.answer}});
  return 0;
}

}  // namespace

void RegisterHabits(App app, const std::function<void(Action)>& select) {
  std::map<std::string, App> verbs;
  for (const Row& row : kRows) {
    auto verb = verbs.find(row.verb);
    if (verb == verbs.end()) {
      verb = verbs.emplace(row.verb, app.add_subcommand(row.verb, "")->group("")).first;
      verb->second.require_subcommand(1);
    }
    auto answering = verb->second.add_subcommand(row.inner, "");
    // Whatever it is told there.
    answering->add_ignored_words("WORDS")->group("");
    answering->callback(
        [=, &row] { select([&row](const Globals& globals) { return Answer(globals, row); }); });
  }
}

}  // namespace stasis::cli
