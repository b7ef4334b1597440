#include <fmt/format.h>

#include "cli/verb.h"
#include "coordinator/operations.h"
#include "coordinator/shared_lots.h"

namespace stasis::cli {

void RegisterRecover(CLI::App& app, const std::function<void(Action)>& select) {
  auto* verb = app.add_subcommand("recover", "Finish or undo what a killed run left");
  verb->callback([select] {
    select([](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(Paths paths, OpenPaths());
      STASIS_ASSIGN(auto session, coordinator::OpenSession(paths, "recover", STASIS_VERSION));
      STASIS_ASSIGN(auto report,
                    coordinator::Recover(session.services, Deadline::In(std::chrono::seconds(30))));
      std::string text;
      auto document = nlohmann::json::array();
      bool ok = true;
      for (const auto& r : report) {
        text += fmt::format("{} {}: {}\n", r.verb, r.target, r.outcome);
        document.push_back(
            {{"verb", r.verb}, {"target", r.target}, {"ok", r.ok}, {"outcome", r.outcome}});
        ok &= r.ok;
      }
      if (report.empty()) text = "nothing to recover\n";
      // Their journals are their own.
      for (const auto& kept : coordinator::KeptByOthers()) {
        text += fmt::format(
            "not looked at: user {0} has suspended process {1}; what was cut off there, "
            "`sudo -u '#{0}' stasis recover` finishes or undoes\n",
            kept.user, kept.process.pid.value);
      }
      PrintResult(globals, text, {{"recovered", document}});
      return ok ? 0 : 6;
    });
  });
}

}  // namespace stasis::cli
