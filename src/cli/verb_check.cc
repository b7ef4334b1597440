#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "api/methods.h"
#include "cli/gpu_report.h"
#include "cli/message_json.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

constexpr double kLongestTimeoutS = 3600;

Outcome Check(const Globals& globals, const v1::CheckRequest& request) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::Check(call, request));
  std::string text;
  for (const auto& finding : response.findings()) text += FindingText(finding);
  if (response.ok() && response.has_target()) {
    text += response.target() + ": nothing prevents suspend, dump or restore\n";
  } else if (response.ok()) {
    text += ::geteuid() == 0
                ? "This machine can checkpoint programs.\n"
                : "This machine can checkpoint programs; `sudo stasis check` checks it as root.\n";
  }
  PrintResult(globals, text, MessageJson(response));
  return response.ok() ? 0 : kUnable;
}

}  // namespace

void RegisterCheck(App app, const std::function<void(Action)>& select) {
  struct Options {
    std::string target;
    bool full = false;
    double timeout_s = 20;
    PlaceFlags places;
    std::string gpu, report;
  };
  auto options = std::make_shared<Options>();
  auto verb =
      app.add_subcommand("check", "Check whether this machine, or a program, can be checkpointed");
  auto target = verb->add_option("TARGET", options->target,
                                 std::string(kTargetHelp) + " (default: check the machine)");
  auto full = verb->add_flag(
      "--full", options->full,
      "For the machine: also check the disk's speed, the agent in a program, and a mover on each "
      "GPU; takes a few seconds, and needs half a GiB of each GPU for a short time");
  auto timeout = verb->add_option("--timeout", options->timeout_s,
                                  "Limit in seconds for each query of the driver, CRIU or a disk");
  timeout->range(0.1, kLongestTimeoutS)->capture_default_str();
  options->places.AddTo(verb);
  auto gpu =
      verb->add_option("--gpu", options->gpu,
                       "Run the conformance checks for GPUs of this vendor, which take up to "
                       "ten minutes: amd. Needs --report");
  auto report = verb->add_option("--report", options->report,
                                 "With --gpu: the file to write, which the developers need");
  report->option_text("FILE");
  for (Option other : {target, full, timeout}) gpu->excludes(other);
  verb->footer(
      "Each finding is ok, note, warning or cannot. A finding `cannot` names features that do not "
      "work here; the exit code is then 5. docs/check.md lists all findings.");
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      if (!options->gpu.empty() || !options->report.empty()) {
        return ReportGpu(globals, options->gpu, options->report);
      }
      v1::CheckRequest request;
      request.set_target(options->target);
      request.set_full(options->full);
      request.set_timeout_s(options->timeout_s);
      *request.mutable_places() = options->places.ToMessage();
      return Check(globals, request);
    });
  });
}

}  // namespace stasis::cli
