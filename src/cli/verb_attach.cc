#include <memory>

#include "cli/operation.h"

namespace stasis::cli {

void RegisterAttach(App app, const std::function<void(Action)>& select) {
  auto job = std::make_shared<std::string>();
  auto options = std::make_shared<AttachFlags>();
  auto verb = app.add_subcommand(
      "attach", "Attach to the terminal of a running job, or follow its output if it has none");
  verb->add_option("JOB", *job, "The job")->required();
  verb->add_flag("--watch", options->watch,
                 "Only watch: forward neither keys nor signals; Ctrl-C detaches");
  options->AddTo(verb);
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      if (globals.json) return FailUsage("attach shows a program's output and has no --json");
      STASIS_ASSIGN(const api::Call call, OpenCall(globals));
      return api::Attach(call, *job, options->ToMessage(), NoteFor(globals));
    });
  });
}

}  // namespace stasis::cli
