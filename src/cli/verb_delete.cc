#include <memory>

#include "cli/operation.h"

namespace stasis::cli {

void RegisterDelete(App app, const std::function<void(Action)>& select) {
  auto ids = std::make_shared<std::vector<std::string>>();
  auto verb =
      app.add_subcommand("delete", "Delete jobs that have ended, with their logs; images stay");
  verb->add_option("JOB", *ids, "The jobs")->required();
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(auto client, OpenClient(globals));
      for (const std::string& id : *ids) STASIS_TRY(client.DeleteJob(id));
      PrintResult(globals, "", {{"deleted", *ids}});
      return 0;
    });
  });
}

}  // namespace stasis::cli
