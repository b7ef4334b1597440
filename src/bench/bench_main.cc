// stasis-bench: runs the measurements of `stasis bench` (cli/verb_bench.cc), which starts it with a
// BenchRequest as text.
#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <signal.h>
#include <unistd.h>

#include <exception>

#include "abi/driver_kinds.h"
#include "api/result_json.h"
#include "api/result_message.h"
#include "base/descriptor_table.h"
#include "base/rights.h"
#include "bench/choose_gpu.h"
#include "bench/plot.h"
#include "bench/remote_command.h"
#include "bench/report.h"
#include "bench/report_text.h"
#include "bench/restore_command.h"
#include "cli/interrupts.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::bench {
namespace {

using cli::FormatBytes;
using cli::FormatSeconds;
using cli::FormatTable;
using cli::Globals;
using nlohmann::json;

std::string TimesText(const Measurements& found, const Report& report) {
  const uint64_t bytes = found.size_bytes;
  std::vector<std::vector<std::string>> rows = {kTimesHeading};
  for (const SharedStats& shared : report.shared) {
    const std::string of =
        fmt::format(", {} x {}", shared.allocations, FormatBytes(shared.allocation_bytes));
    rows.push_back(TimesRow("suspend, first" + of, shared.cold_suspend.seconds, bytes));
    rows.push_back(TimesRow("suspend, warm" + of, shared.suspend.seconds, bytes));
    rows.push_back(TimesRow("resume, first" + of, shared.cold_resume.seconds, bytes));
    rows.push_back(TimesRow("resume, warm" + of, shared.resume.seconds, bytes));
    if (shared.stacks_kept_suspend.phases.empty()) continue;
    rows.push_back(TimesRow("  driver calls of the suspend", shared.suspend.driver_calls, 0));
    rows.push_back(
        TimesRow("  … with stack limits kept", shared.stacks_kept_suspend.driver_calls, 0));
    rows.push_back(TimesRow("  driver calls of the resume", shared.resume.driver_calls, 0));
    rows.push_back(
        TimesRow("  … with stack limits kept", shared.stacks_kept_resume.driver_calls, 0));
  }
  for (const DriverStats& driver : report.driver_alone) {
    const std::string with = ", huge pages " + driver.huge_pages;
    rows.push_back(TimesRow("driver alone, suspend" + with, driver.suspend.driver_calls, bytes));
    rows.push_back(TimesRow("driver alone, resume" + with, driver.resume.driver_calls, bytes));
  }
  rows.push_back(TimesRow("driver, bare context, suspend", report.control_suspend.driver_calls, 0));
  rows.push_back(TimesRow("driver, bare context, resume", report.control_resume.driver_calls, 0));
  rows.push_back({"wire, to host memory", "", "", "", RateText(found.wire.to_arena_bytes_per_s)});
  rows.push_back({"wire, to the GPU", "", "", "", RateText(found.wire.to_gpu_bytes_per_s)});
  rows.push_back({"hashing of blocks, on the GPU", "", "", "",
                  found.hashing.bytes > 0 ? RateText(found.hashing.bytes_per_s) : "not possible"});
  return FormatTable(rows);
}

std::string PhasesText(const OperationStats& stats) {
  std::vector<std::vector<std::string>> rows;
  for (const PhaseStats& phase : stats.phases) {
    rows.push_back(
        {"  " + std::string(static_cast<size_t>(phase.depth) * 2, ' ') + phase.name,
         FormatSeconds(phase.seconds.median), FormatSeconds(phase.seconds.min),
         FormatSeconds(phase.seconds.max),
         RateOver(phase.bytes, phase.seconds.median) + (phase.parallel ? " (in parallel)" : "")});
  }
  for (const auto& part : stats.parts) rows.push_back(TimesRow("  " + part.what, part.seconds, 0));
  return FormatTable(rows);
}

std::string Title(const Measurements& found) {
  return fmt::format("stasis bench: {} on GPU {}, {}", FormatBytes(found.size_bytes),
                     found.gpu.index, found.gpu.name);
}

std::string Subtitle(const Measurements& found) {
  std::string text =
      fmt::format("driver {} {}, transparent huge pages {}, {} warm rounds", found.driver.kind,
                  found.driver.version, found.huge_pages, found.shared.front().warm.size());
  if (!abi::IsHardware(found.driver.kind)) text += ". On the software GPU the times mean nothing";
  return text;
}

std::string ReportText(const Measurements& found, const Report& report) {
  const bool meaningful = abi::IsHardware(found.driver.kind);
  std::string text = Title(found) + "\n" + Subtitle(found) + "\n\n";
  text += TimesText(found, report);
  text += "\nphases of a warm suspend\n" + PhasesText(report.shared.front().suspend);
  text += "\nphases of a warm resume\n" + PhasesText(report.shared.front().resume);
  text += "\nratios\n" + RatiosText(report.ratios, meaningful);
  text += fmt::format("\nGPU memory in use while suspended: {}\n",
                      FormatBytes(static_cast<uint64_t>(report.shared.front().held_bytes.median)));
  if (found.arena_reserved_bytes > 0) {
    text += fmt::format(
        "{} of host memory had already been allocated before the first suspend, so it was not "
        "entirely cold\n",
        FormatBytes(found.arena_reserved_bytes));
  }
  if (!found.why_no_hashing.empty()) {
    text += "blocks are hashed by the CPU: " + found.why_no_hashing + "\n";
  }
  text += fmt::format("contents verified after every resume; total time {}\n",
                      FormatSeconds(found.total_s));
  if (!meaningful) {
    text += "run on the software GPU: the times say nothing about a real GPU\n";
  }
  return text;
}

json ToJson(const OperationStats& stats) {
  json phases = json::array();
  for (const PhaseStats& phase : stats.phases) {
    phases.push_back({{"name", phase.name},
                      {"start_s", phase.start_s},
                      {"seconds", StatsJson(phase.seconds)},
                      {"bytes", phase.bytes},
                      {"depth", phase.depth},
                      {"parallel", phase.parallel}});
  }
  json parts = json::object();
  for (const auto& part : stats.parts) parts[part.name] = StatsJson(part.seconds);
  return {{"seconds", StatsJson(stats.seconds)},
          {"driver_calls_s", StatsJson(stats.driver_calls)},
          {"phases", phases},
          {"parts", parts}};
}

json ToJson(const Round& round) {
  return {{"suspend_s", round.suspend.seconds},
          {"suspend", api::ResultJson(api::ToMessage(round.suspend.result))},
          {"resume_s", round.resume.seconds},
          {"resume", api::ResultJson(api::ToMessage(round.resume.result))},
          {"held_bytes", round.held_bytes}};
}

json ToJson(const std::vector<Round>& rounds) {
  json list = json::array();
  for (const Round& round : rounds) list.push_back(ToJson(round));
  return list;
}

json HashingJson(const Measurements& found) {
  if (found.hashing.bytes == 0) return {{"why_not", found.why_no_hashing}};
  return {{"bytes", found.hashing.bytes},
          {"bytes_per_s", found.hashing.bytes_per_s},
          {"prepare_s", found.hashing.prepare_s}};
}

json ReportJson(const Measurements& found, const Report& report) {
  json shared = json::array();
  for (size_t i = 0; i < report.shared.size(); ++i) {
    const SharedStats& stats = report.shared[i];
    shared.push_back(
        {{"allocation_bytes", stats.allocation_bytes},
         {"allocations", stats.allocations},
         {"cold", {{"suspend", ToJson(stats.cold_suspend)}, {"resume", ToJson(stats.cold_resume)}}},
         {"warm", {{"suspend", ToJson(stats.suspend)}, {"resume", ToJson(stats.resume)}}},
         {"stacks_kept",
          {{"suspend", ToJson(stats.stacks_kept_suspend)},
           {"resume", ToJson(stats.stacks_kept_resume)}}},
         {"held_bytes", StatsJson(stats.held_bytes)},
         {"cold_round", ToJson(found.shared[i].cold)},
         {"rounds", ToJson(found.shared[i].warm)},
         {"stacks_kept_rounds", ToJson(found.shared[i].stacks_kept)}});
  }
  json driver = json::array();
  for (size_t i = 0; i < report.driver_alone.size(); ++i) {
    const DriverStats& stats = report.driver_alone[i];
    driver.push_back({{"huge_pages", stats.huge_pages},
                      {"suspend", ToJson(stats.suspend)},
                      {"resume", ToJson(stats.resume)},
                      {"rounds", ToJson(found.driver_alone[i].rounds)}});
  }
  json machine = MachineJson();
  machine["huge_pages"] = found.huge_pages;
  return {{"stasis", STASIS_VERSION},
          {"driver", {{"kind", found.driver.kind}, {"version", found.driver.version}}},
          {"times_mean_something", abi::IsHardware(found.driver.kind)},
          {"gpu",
           {{"uuid", found.gpu.uuid.value},
            {"index", found.gpu.index},
            {"name", found.gpu.name},
            {"total_bytes", found.gpu.total_bytes},
            {"free_bytes", found.gpu.free_bytes}}},
          {"machine", machine},
          {"size_bytes", found.size_bytes},
          {"arena_reserved_bytes", found.arena_reserved_bytes},
          {"shared", shared},
          {"driver_alone", driver},
          {"control",
           {{"suspend", ToJson(report.control_suspend)},
            {"resume", ToJson(report.control_resume)},
            {"rounds", ToJson(found.control)}}},
          {"wire",
           {{"bytes", found.wire.bytes},
            {"to_host_bytes_per_s", found.wire.to_arena_bytes_per_s},
            {"to_gpu_bytes_per_s", found.wire.to_gpu_bytes_per_s}}},
          {"hashing", HashingJson(found)},
          {"limit", {{"suspend_s", report.suspend_limit_s}, {"resume_s", report.resume_limit_s}}},
          {"ratios", RatiosJson(report.ratios)},
          {"total_s", found.total_s}};
}

Result<Measurements> RunMeasurements(const Globals& globals, const v1::BenchRequest& request) {
  MeasureOptions options;
  options.size_bytes = request.size_bytes();
  options.allocation_bytes.assign(request.allocation_bytes().begin(),
                                  request.allocation_bytes().end());
  options.rounds = request.rounds();
  options.driver_rounds = request.driver_rounds();
  options.huge_pages = request.huge_pages();
  options.ignore_memory = request.ignore_memory();
  options.settings = globals.settings();
  options.stasis_version = STASIS_VERSION;
  options.cancelled = cli::Interrupted;
  const bool shows = !globals.quiet && ::isatty(STDERR_FILENO) != 0;
  if (shows) {
    options.progress = [](const std::string& what) {
      cli::PrintStderr(fmt::format("\r\033[K{} ...", what));
    };
  }
  STASIS_ASSIGN(options.gpu, ChooseGpu(globals, request.gpu()));
  STASIS_TRY(CheckPlotWritable(request.svg()));
  STASIS_ASSIGN(const Paths paths, cli::OpenPaths(globals));
  auto found = Measure(paths, options);
  if (shows) cli::PrintStderr("\r\033[K");
  return found;
}

Status Run(Globals& globals, const std::string& text) {
  v1::BenchRequest request;
  if (!google::protobuf::TextFormat::ParseFromString(text, &request)) {
    return cli::FailUsage("this program is started by `stasis bench`");
  }
  globals.json = request.json();
  globals.quiet = request.quiet();
  STASIS_ASSIGN(globals.config, config::Load());
  if (request.has_remote()) return RunRemoteBench(globals, request);
  cli::CatchInterrupts();
  if (request.restore()) return RunRestoreBench(globals, request);
  STASIS_ASSIGN(const Measurements found,
                Annotate(RunMeasurements(globals, request), "cannot measure"));
  const Report report = MakeReport(found);
  const json document = ReportJson(found, report);
  Status plotted;
  if (!request.svg().empty()) {
    plotted = Annotate(WritePlot(request.svg(), document), "write the plot to " + request.svg());
  }
  // Print the result even if the plot failed, because the measurements take minutes.
  cli::PrintResult(globals, ReportText(found, report), document);
  if (!plotted) globals.json = false;  // stdout already has the document
  STASIS_TRY(std::move(plotted));
  return cli::FinishOutput();
}

int Main(int argc, char** argv) {
  HoldRights();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  WidenDescriptorTable();
  Globals globals;
  Status done;
  try {
    done = Run(globals, argc > 1 ? argv[1] : "?");
  } catch (const std::exception& error) {
    done = Fail(Code::kInternal, std::string("internal error: ") + error.what(),
                "`stasis recover` undoes an unfinished operation");
  }
  if (done) return 0;
  cli::PrintError(globals, done.error());
  return ExitCode(done.error());
}

}  // namespace
}  // namespace stasis::bench

int main(int argc, char** argv) { return stasis::bench::Main(argc, argv); }
