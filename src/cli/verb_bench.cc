#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "api/result_json.h"
#include "api/result_message.h"
#include "base/file.h"
#include "base/size.h"
#include "bench/plot.h"
#include "bench/report.h"
#include "cli/interrupts.h"
#include "cli/operation.h"
#include "cli/table.h"
#include "device/gpu_map.h"
#include "gpu_state/services.h"

namespace stasis::cli {
namespace {

using bench::DriverStats;
using bench::Measurements;
using bench::OperationStats;
using bench::PhaseStats;
using bench::Ratio;
using bench::Report;
using bench::Round;
using bench::SharedStats;
using bench::Stats;
using nlohmann::json;

// Below this size the agent leaves memory to the driver, so the two paths would not differ.
constexpr uint64_t kLeastAllocation = 1ull << 20;
constexpr uint64_t kMostAllocations = 1ull << 20;
constexpr uint64_t kDefaultAllocation = 1ull << 30;

struct Options {
  std::string size = "32GiB";
  std::vector<std::string> allocations;
  int rounds = 7;
  int driver_rounds = 2;
  std::string gpu = "0";
  std::string svg;
  bool thp = false;
  bool ignore_memory = false;
};

// Parses and checks the options; the GPU is looked up later.
Result<bench::MeasureOptions> Parse(const Options& options) {
  bench::MeasureOptions measure;
  STASIS_ASSIGN(measure.size_bytes, ParseSize(options.size));
  for (const std::string& text : options.allocations) {
    STASIS_ASSIGN(uint64_t bytes, ParseSize(text));
    if (bytes < kLeastAllocation || bytes % sizeof(uint64_t) != 0) {
      return FailUsage("--allocation " + text + " is too small, or no multiple of 8",
                       "1MiB is the least");
    }
    if (bytes > measure.size_bytes) {
      return FailUsage("--allocation " + text + " is more than --size " + options.size);
    }
    if (measure.size_bytes / bytes > kMostAllocations) {
      return FailUsage(fmt::format("{} in allocations of {} are more than {} of them", options.size,
                                   text, kMostAllocations));
    }
    measure.allocation_bytes.push_back(bytes);
  }
  if (measure.allocation_bytes.empty()) {
    measure.allocation_bytes = {std::min(kDefaultAllocation, measure.size_bytes)};
  }
  measure.rounds = options.rounds;
  measure.driver_rounds = options.driver_rounds;
  measure.huge_pages = options.thp;
  measure.ignore_memory = options.ignore_memory;
  measure.stasis_version = STASIS_VERSION;
  return measure;
}

Result<device::Gpu> ChooseGpu(const Globals& globals, const std::string& meant) {
  auto control = device::MakeDeviceControl(gpu_state::ControlOptionsOf(globals.settings()));
  STASIS_ASSIGN(auto driver, control->Driver());
  if (!driver.can_checkpoint) {
    return Fail(Code::kUnimplemented, "this machine's driver cannot suspend: " + driver.why_not,
                "`stasis check` looks at this machine");
  }
  STASIS_ASSIGN(auto gpus, control->Gpus());
  return device::FindGpu(meant, gpus);
}

std::string Rate(double bytes_per_s) { return fmt::format("{:.1f} GB/s", bytes_per_s / 1e9); }

std::string RateOver(uint64_t bytes, double seconds) {
  return bytes > 0 && seconds > 0 ? Rate(static_cast<double>(bytes) / seconds) : "";
}

std::vector<std::string> Row(const std::string& name, const Stats& stats, uint64_t bytes) {
  return {name, FormatSeconds(stats.median), FormatSeconds(stats.min), FormatSeconds(stats.max),
          RateOver(bytes, stats.median)};
}

std::string TimesText(const Measurements& found, const Report& report) {
  const uint64_t bytes = found.size_bytes;
  std::vector<std::vector<std::string>> rows = {{"", "MEDIAN", "LEAST", "MOST", "RATE"}};
  for (const SharedStats& shared : report.shared) {
    const std::string of =
        fmt::format(", {} x {}", shared.allocations, FormatBytes(shared.allocation_bytes));
    rows.push_back(Row("suspend, first" + of, shared.cold_suspend.seconds, bytes));
    rows.push_back(Row("suspend, warm" + of, shared.suspend.seconds, bytes));
    rows.push_back(Row("resume, first" + of, shared.cold_resume.seconds, bytes));
    rows.push_back(Row("resume, warm" + of, shared.resume.seconds, bytes));
    if (shared.stacks_kept_suspend.phases.empty()) continue;
    rows.push_back(Row("  its driver calls, out", shared.suspend.driver_calls, 0));
    rows.push_back(Row("  … with stack limits kept", shared.stacks_kept_suspend.driver_calls, 0));
    rows.push_back(Row("  its driver calls, back", shared.resume.driver_calls, 0));
    rows.push_back(Row("  … with stack limits kept", shared.stacks_kept_resume.driver_calls, 0));
  }
  for (const DriverStats& driver : report.driver_alone) {
    const std::string with = ", huge pages " + driver.huge_pages;
    rows.push_back(Row("driver alone, out" + with, driver.suspend.driver_calls, bytes));
    rows.push_back(Row("driver alone, back" + with, driver.resume.driver_calls, bytes));
  }
  rows.push_back(Row("driver, bare context, out", report.control_suspend.driver_calls, 0));
  rows.push_back(Row("driver, bare context, back", report.control_resume.driver_calls, 0));
  rows.push_back({"wire, to host memory", "", "", "", Rate(found.wire.to_arena_bytes_per_s)});
  rows.push_back({"wire, to the GPU", "", "", "", Rate(found.wire.to_gpu_bytes_per_s)});
  rows.push_back({"names of blocks, on the GPU", "", "", "",
                  found.naming.bytes > 0 ? Rate(found.naming.bytes_per_s) : "not possible"});
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
  for (const auto& part : stats.parts) rows.push_back(Row("  " + part.what, part.seconds, 0));
  return FormatTable(rows);
}

std::string RatiosText(const Report& report, bool meaningful) {
  std::vector<std::vector<std::string>> rows;
  for (const Ratio& ratio : report.ratios) {
    rows.push_back({"  " + ratio.what, fmt::format("{:.2f}", ratio.value),
                    fmt::format("{} {:.2f}", ratio.at_most ? "at most" : "at least", ratio.bar),
                    !meaningful   ? ""
                    : ratio.met() ? "met"
                                  : "not met"});
  }
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
  if (const char* remark = found.driver.properties().remark)
    text += std::string(". This is ") + remark;
  return text;
}

std::string ReportText(const Measurements& found, const Report& report) {
  const bool meaningful = found.driver.properties().is_hardware;
  std::string text = Title(found) + "\n" + Subtitle(found) + "\n\n";
  text += TimesText(found, report);
  text += "\nphases of a warm suspend\n" + PhasesText(report.shared.front().suspend);
  text += "\nphases of a warm resume\n" + PhasesText(report.shared.front().resume);
  text += "\nratios\n" + RatiosText(report, meaningful);
  text += fmt::format("\nGPU memory in use while suspended: {}\n",
                      FormatBytes(static_cast<uint64_t>(report.shared.front().held_bytes.median)));
  if (found.arena_reserved_bytes > 0) {
    text += fmt::format("the first suspend found {} of host memory ready: it was not quite cold\n",
                        FormatBytes(found.arena_reserved_bytes));
  }
  if (!found.why_no_naming.empty()) {
    text += "blocks are named by the processors: " + found.why_no_naming + "\n";
  }
  text += fmt::format("contents verified after every resume; all of it took {}\n",
                      FormatSeconds(found.total_s));
  if (!meaningful) {
    text += fmt::format("on {}: the times show that it works, not how fast a GPU would be\n",
                        found.driver.kind);
  }
  return text;
}

json ToJson(const Stats& stats) {
  return {{"median", stats.median}, {"min", stats.min}, {"max", stats.max}};
}

json ToJson(const OperationStats& stats) {
  json phases = json::array();
  for (const PhaseStats& phase : stats.phases) {
    phases.push_back({{"name", phase.name},
                      {"start_s", phase.start_s},
                      {"seconds", ToJson(phase.seconds)},
                      {"bytes", phase.bytes},
                      {"depth", phase.depth},
                      {"parallel", phase.parallel}});
  }
  json parts = json::object();
  for (const auto& part : stats.parts) parts[part.name] = ToJson(part.seconds);
  return {{"seconds", ToJson(stats.seconds)},
          {"driver_calls_s", ToJson(stats.driver_calls)},
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

json NamesJson(const Measurements& found) {
  if (found.naming.bytes == 0) return {{"why_not", found.why_no_naming}};
  return {{"bytes", found.naming.bytes},
          {"bytes_per_s", found.naming.bytes_per_s},
          {"prepare_s", found.naming.prepare_s}};
}

json MachineJson(const Measurements& found) {
  utsname kernel{};
  ::uname(&kernel);
  return {{"kernel", kernel.release},
          {"processors", std::thread::hardware_concurrency()},
          {"huge_pages", found.huge_pages}};
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
         {"held_bytes", ToJson(stats.held_bytes)},
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
  json ratios = json::array();
  for (const Ratio& ratio : report.ratios) {
    ratios.push_back({{"name", ratio.name},
                      {"what", ratio.what},
                      {"value", ratio.value},
                      {"bar", ratio.bar},
                      {"at_most", ratio.at_most},
                      {"met", ratio.met()}});
  }
  return {{"stasis", STASIS_VERSION},
          {"driver", {{"kind", found.driver.kind}, {"version", found.driver.version}}},
          {"times_mean_something", found.driver.properties().is_hardware},
          {"gpu",
           {{"uuid", found.gpu.uuid.value},
            {"index", found.gpu.index},
            {"name", found.gpu.name},
            {"total_bytes", found.gpu.total_bytes},
            {"free_bytes", found.gpu.free_bytes}}},
          {"machine", MachineJson(found)},
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
          {"names", NamesJson(found)},
          {"limit", {{"suspend_s", report.suspend_limit_s}, {"resume_s", report.resume_limit_s}}},
          {"ratios", ratios},
          {"total_s", found.total_s}};
}

// Reports an unwritable path before minutes of work.
Status CheckWritable(const std::string& path) {
  if (path.empty()) return {};
  const std::string folder = std::filesystem::path(AbsolutePath(path)).parent_path();
  if (::access(folder.c_str(), W_OK) != 0) return FailErrno(errno, "write the plot to " + path);
  return {};
}

Outcome Run(const Globals& globals, const Options& options) {
  STASIS_ASSIGN(auto measure, Parse(options));
  measure.settings = globals.settings();
  CatchInterrupts();
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  auto run = [&]() -> Result<Measurements> {
    STASIS_ASSIGN(measure.gpu, ChooseGpu(globals, options.gpu));
    STASIS_TRY(CheckWritable(options.svg));
    measure.cancelled = Interrupted;
    const bool shows = !globals.quiet && ::isatty(STDERR_FILENO) != 0;
    if (shows) {
      measure.progress = [](const std::string& what) {
        PrintStderr(fmt::format("\r\033[K{} ...", what));
      };
    }
    auto found = bench::Measure(paths, measure);
    if (shows) PrintStderr("\r\033[K");
    return found;
  };
  STASIS_ASSIGN(Measurements found, Annotate(run(), "cannot measure"));
  const Report report = bench::MakeReport(found);
  if (!options.svg.empty()) {
    STASIS_TRY(
        Annotate(WriteFileDurably(options.svg, PlotSvg(report, Title(found), Subtitle(found))),
                 "write the plot to " + options.svg));
  }
  PrintResult(globals, ReportText(found, report), ReportJson(found, report));
  return 0;
}

}  // namespace

void RegisterBench(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand(
      "bench", "Measure suspend and resume on a GPU, beside the driver's own path, in one run");
  verb->add_option("--size", options->size, "GPU memory to work with (32GiB)");
  verb->add_option("--allocation", options->allocations,
                   "In pieces of this size (1GiB, or all of it); several, separated by commas: the "
                   "shared path "
                   "with each")
      ->delimiter(',');
  verb->add_option("--rounds", options->rounds, "Warm rounds (7)")->range(1, 1000);
  verb->add_option("--driver-rounds", options->driver_rounds,
                   "Rounds of the driver's own path, which is slow (2); 0: leave it out")
      ->range(0, 1000);
  verb->add_option("--gpu", options->gpu, "Which: index, UUID or name (0)");
  verb->add_option("--svg", options->svg, "Write a plot there");
  verb->add_flag(
      "--thp", options->thp,
      "The driver's own path with transparent huge pages `madvise` and `always`: changes "
      "the machine's setting meanwhile");
  verb->add_flag("--ignore-memory", options->ignore_memory,
                 "Go on when host memory looks too small");
  verb->callback([=] { select([=](const Globals& globals) { return Run(globals, *options); }); });
}

}  // namespace stasis::cli
