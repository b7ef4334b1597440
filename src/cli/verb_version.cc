#include "cli/verb.h"

namespace stasis::cli {

void RegisterVersion(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("version", "Print the version of Stasis");
  verb->callback([select] {
    select([](const Globals& globals) -> Outcome {
      PrintResult(globals, "stasis " STASIS_VERSION, {{"stasis", STASIS_VERSION}});
      return 0;
    });
  });
}

}  // namespace stasis::cli
