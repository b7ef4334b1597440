#include "cli/gpu_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/file.h"
#include "base/install_layout.h"
#include "cli/interrupts.h"
#include "cli/operation.h"
#include "conformance/kit.h"

namespace stasis::cli {
namespace {

using conformance::Report;
using conformance::Step;
using conformance::Verdict;

std::string ReportJson(const Report& report) {
  return conformance::ToJson(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string LineOf(const Step& step) {
  return fmt::format("{:<8} {:<16} {:>7.2f} s  {}\n", VerdictName(step.verdict), step.id,
                     step.seconds, step.message.substr(0, step.message.find('\n')));
}

std::string Summary(const Report& report, const std::string& file) {
  auto count = [&](Verdict verdict) {
    return std::count_if(report.steps.begin(), report.steps.end(),
                         [&](const Step& step) { return step.verdict == verdict; });
  };
  std::string text;
  for (const Step& step : report.steps) {
    if (step.verdict == Verdict::kFailed) text += step.id + ": " + step.message + "\n";
  }
  return text + fmt::format(
                    "{} steps passed, {} failed, {} were skipped, in {:.0f} s.\n"
                    "The report is in {}; docs/amd.md says where to send it.\n",
                    count(Verdict::kPassed), count(Verdict::kFailed), count(Verdict::kSkipped),
                    report.seconds, file);
}

Status CheckVendor(const std::string& vendor, const std::string& file) {
  if (vendor.empty())
    return FailUsage("--report is for --gpu", "stasis check --gpu amd --report FILE");
  if (vendor == "nvidia") {
    return Fail(Code::kUnimplemented, "there are no conformance checks for NVIDIA GPUs",
                "`stasis check --full` checks the machine, and `stasis bench` measures a GPU");
  }
  if (vendor != "amd") {
    return FailUsage("--gpu " + vendor + " is not a vendor with conformance checks", "--gpu amd");
  }
  if (file.empty()) {
    return FailUsage("--gpu needs a file for the report", "stasis check --gpu amd --report FILE");
  }
  return {};
}

}  // namespace

Outcome ReportGpu(const Globals& globals, const std::string& vendor, const std::string& given) {
  STASIS_TRY(CheckVendor(vendor, given));
  const std::string file = AbsolutePath(given);
  // The report replaces the file, which must not be a device, such as /dev/stdout.
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored) &&
      !std::filesystem::is_regular_file(std::filesystem::symlink_status(file, ignored))) {
    return FailUsage(file + " is not a regular file", "name a new file for the report");
  }
  CatchInterrupts();
  STASIS_ASSIGN(const std::string root, InstallRoot());
  STASIS_ASSIGN(auto commands, conformance::MakeCommands(root));
  conformance::KitOptions options;
  options.version = STASIS_VERSION;
  options.began = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  options.machine = conformance::DescribeMachine();
  options.render_nodes = conformance::RenderNodes();
  options.cancelled = Interrupted;
  options.save = [&](const Report& report) {
    return Annotate(ReplaceFile(file, ReportJson(report)), "write the report");
  };
  options.done = [&](const Step& step) {
    if (!globals.quiet) PrintStderr(LineOf(step));
  };
  STASIS_ASSIGN(const Report report, conformance::RunKit(options, *commands));
  PrintResult(globals, Summary(report, file), conformance::ToJson(report));
  return report.passed() ? 0 : kUnable;
}

}  // namespace stasis::cli
