#include <fmt/format.h>

#include "cli/operation.h"

namespace stasis::cli {

void RegisterRecover(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("recover", "Finish or undo what a killed run left");
  verb->callback([select] {
    select([](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(auto client, OpenClient(globals));
      STASIS_ASSIGN(const v1::RecoverResponse response, client.Recover());
      std::string text;
      auto document = nlohmann::json::array();
      bool ok = true;
      for (const auto& r : response.recovered()) {
        text += fmt::format("{} {}: {}\n", r.verb(), r.target(), r.outcome());
        document.push_back({{"operation", r.operation()},
                            {"verb", r.verb()},
                            {"target", r.target()},
                            {"ok", r.ok()},
                            {"outcome", r.outcome()}});
        ok &= r.ok();
      }
      if (response.recovered().empty()) text = "nothing to recover\n";
      for (const auto& sentence : response.not_looked_at()) {
        text += fmt::format("not looked at: {}\n", sentence);
      }
      PrintResult(globals, text, {{"recovered", document}});
      return ok ? 0 : 6;
    });
  });
}

}  // namespace stasis::cli
