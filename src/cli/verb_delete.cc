#include <memory>

#include "cli/verb.h"
#include "jobs/store.h"

namespace stasis::cli {

void RegisterDelete(CLI::App& app, const std::function<void(Action)>& select) {
  auto ids = std::make_shared<std::vector<std::string>>();
  auto* verb =
      app.add_subcommand("delete", "Forget jobs that have ended, with their logs; images stay");
  verb->add_option("JOB", *ids, "The jobs")->required();
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(Paths paths, OpenPaths());
      jobs::Store store(paths.jobs());
      for (const std::string& id : *ids) STASIS_TRY(store.Delete(id));
      PrintResult(globals, "", {{"deleted", *ids}});
      return 0;
    });
  });
}

}  // namespace stasis::cli
