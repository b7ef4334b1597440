#include <fmt/format.h>

#include "cli/message_json.h"
#include "cli/operation.h"

namespace stasis::cli {

void RegisterRecover(App app, const std::function<void(Action)>& select) {
  auto verb =
      app.add_subcommand("recover", "Finish or undo operations that were interrupted by a kill");
  verb->callback([select] {
    select([](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(auto client, OpenClient(globals));
      STASIS_ASSIGN(const v1::RecoverResponse response, client.Recover());
      std::string text;
      bool ok = true;
      for (const auto& r : response.recovered()) {
        text += fmt::format("{} {}: {}\n", r.verb(), r.target(), r.outcome());
        ok &= r.ok();
      }
      if (response.recovered().empty()) text = "nothing to recover\n";
      for (const auto& sentence : response.not_looked_at()) {
        text += fmt::format("skipped: {}\n", sentence);
      }
      nlohmann::json document = MessageJson(response);
      document.erase("not_looked_at");
      PrintResult(globals, text, document);
      return ok ? 0 : 6;
    });
  });
}

}  // namespace stasis::cli
