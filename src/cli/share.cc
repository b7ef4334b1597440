#include "cli/share.h"

#include "cli/operation.h"

namespace stasis::cli {

void ShareFlag::AddTo(App verb) {
  verb->add_flag("--share", given,
                 "Share GPUs with other programs: --share or --share=interactive for one that a "
                 "user waits for, --share=batch for one that can wait. Needs the daemon. "
                 "--share=off: do not share, in spite of share.default")
      ->option_text("[=CLASS]");
}

Result<std::string> ShareFlag::Class() const {
  if (given.empty() || given == "interactive" || given == "batch") return given;
  if (given == "off") return std::string();
  if (given == "true") return std::string("interactive");
  return FailUsage("'" + given.substr(0, 64) + "' is not a class of programs that share GPUs",
                   "--share=interactive, --share=batch or --share=off");
}

Result<api::Client> OpenShareClient(const Globals& globals) {
  STASIS_ASSIGN(auto client, OpenClient(globals));
  if (client.has_daemon()) return client;
  return Fail(globals.no_daemon ? Code::kInvalidArgument : Code::kNotFound,
              globals.no_daemon ? Domain::kUsage : Domain::kStasis, 0,
              "sharing GPUs needs the daemon",
              globals.no_daemon ? "run the command without --no-daemon"
                                : "`stasis daemon start` starts one");
}

}  // namespace stasis::cli
