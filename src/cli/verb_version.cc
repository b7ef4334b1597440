#include "cli/verb.h"

namespace stasis::cli {

void RegisterVersion(App app, const std::function<void(Action)>& select) {
  auto print = [select] {
    select([](const Globals& globals) -> Outcome {
      PrintResult(globals, "stasis " STASIS_VERSION, {{"stasis", STASIS_VERSION}});
      return 0;
    });
  };
  app.add_subcommand("version", "Print the version of Stasis")->callback(print);
  app.add_flag("-V,--version", "Print the version of Stasis", print);
}

}  // namespace stasis::cli
