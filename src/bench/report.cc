#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "operations/result.h"
#include "plan/account.h"

namespace stasis::bench {
namespace {

using plan::PhaseReport;

double PhaseSeconds(const Sample& sample, const std::string& name) {
  for (const PhaseReport& phase : sample.result.account.phases) {
    if (phase.name == name) return phase.seconds;
  }
  return 0;
}

template <class Get>
Stats StatsOver(const std::vector<const Sample*>& samples, const Get& get) {
  std::vector<double> values;
  for (const Sample* sample : samples) values.push_back(get(*sample));
  return StatsOf(std::move(values));
}

// All samples have the same phases, because their plans are the same.
std::vector<PhaseStats> PhasesOf(const std::vector<const Sample*>& samples) {
  std::vector<PhaseStats> phases;
  if (samples.empty()) return phases;
  PhaseStats look;
  look.name = "look";
  look.seconds =
      StatsOver(samples, [](const Sample& s) { return s.seconds - s.result.account.total_s; });
  look.start_s = -look.seconds.median;
  phases.push_back(look);
  for (const PhaseReport& first : samples.front()->result.account.phases) {
    PhaseStats phase;
    phase.name = first.name;
    phase.bytes = first.bytes;
    phase.depth = first.depth;
    phase.parallel = first.parallel;
    std::vector<double> seconds, starts;
    for (const Sample* sample : samples) {
      for (const PhaseReport& report : sample->result.account.phases) {
        if (report.name != first.name) continue;
        seconds.push_back(report.seconds);
        starts.push_back(report.start_s);
      }
    }
    phase.seconds = StatsOf(std::move(seconds));
    phase.start_s = StatsOf(std::move(starts)).median;
    phases.push_back(std::move(phase));
  }
  return phases;
}

struct PartRow {
  const char* name;
  const char* what;
  double operations::Saved::*seconds;
};
constexpr PartRow kParts[] = {
    {"until_first_copy_s", "mover: time before the first copy", &operations::Saved::until_first_s},
    {"hashing_s", "mover: hashing, on the GPU", &operations::Saved::hashing_s},
    {"copy_s", "mover: copy", &operations::Saved::copy_s},
    {"release_s", "mover: release of GPU memory", &operations::Saved::release_s},
    {"close_s", "closing of descriptors", &operations::Saved::close_s},
};

std::vector<PartStats> PartsOf(const std::vector<const Sample*>& samples) {
  std::vector<PartStats> parts;
  for (const PartRow& row : kParts) {
    parts.push_back({row.name, row.what, StatsOver(samples, [&](const Sample& sample) {
                       return sample.result.saved.*row.seconds;
                     })});
  }
  return parts;
}

OperationStats StatsOfSamples(const std::vector<const Sample*>& samples, const char* first_call,
                              const char* second_call) {
  OperationStats stats;
  stats.seconds = StatsOver(samples, [](const Sample& s) { return s.seconds; });
  stats.phases = PhasesOf(samples);
  stats.driver_calls = StatsOver(samples, [&](const Sample& s) {
    return PhaseSeconds(s, first_call) + PhaseSeconds(s, second_call);
  });
  return stats;
}

double Divide(double a, double b) { return b > 0 ? a / b : 0; }

std::string Seconds(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

void AddRatios(Report& report) {
  const SharedStats& shared = report.shared.front();
  const double out = shared.suspend.seconds.median;
  const double back = shared.resume.seconds.median;
  auto& ratios = report.ratios;
  ratios.push_back(
      {"suspend_over_limit",
       fmt::format("warm suspend over its limit of {}", Seconds(report.suspend_limit_s)),
       Divide(out, report.suspend_limit_s), 1.10});
  ratios.push_back({"resume_over_limit",
                    fmt::format("warm resume over its limit of {}", Seconds(report.resume_limit_s)),
                    Divide(back, report.resume_limit_s), 1.20});
  ratios.push_back({"cold_over_warm_suspend", "first suspend over warm ones",
                    Divide(shared.cold_suspend.seconds.median, out), 3});
  // Uses the setting with which the driver was faster.
  double driver_out = std::numeric_limits<double>::max();
  double driver_back = driver_out;
  for (const DriverStats& driver : report.driver_alone) {
    driver_out = std::min(driver_out, driver.suspend.driver_calls.median);
    driver_back = std::min(driver_back, driver.resume.driver_calls.median);
  }
  if (!report.driver_alone.empty()) {
    ratios.push_back({"suspend_speedup", "the driver's own calls over a warm suspend",
                      Divide(driver_out, out), 15, false});
    ratios.push_back({"resume_speedup", "the driver's own calls over a warm resume",
                      Divide(driver_back, back), 6, false});
  }
  for (size_t i = 1; i < report.shared.size(); ++i) {
    const SharedStats& other = report.shared[i];
    const std::string which =
        fmt::format("{} allocations over {}", other.allocations, shared.allocations);
    ratios.push_back({fmt::format("suspend_of_{}_over_first", other.allocations),
                      "warm suspend of " + which, Divide(other.suspend.seconds.median, out), 1.3});
    ratios.push_back({fmt::format("resume_of_{}_over_first", other.allocations),
                      "warm resume of " + which, Divide(other.resume.seconds.median, back), 1.3});
  }
}

}  // namespace

Stats StatsOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

OperationStats SuspendStats(const std::vector<Round>& rounds) {
  std::vector<const Sample*> samples;
  for (const Round& round : rounds) samples.push_back(&round.suspend);
  OperationStats stats = StatsOfSamples(samples, "gpu-lock", "gpu-checkpoint");
  const bool by_movers = !samples.empty() && samples.front()->result.shared_bytes > 0;
  if (by_movers) stats.parts = PartsOf(samples);
  return stats;
}

OperationStats ResumeStats(const std::vector<Round>& rounds) {
  std::vector<const Sample*> samples;
  for (const Round& round : rounds) samples.push_back(&round.resume);
  return StatsOfSamples(samples, "gpu-restore", "gpu-unlock");
}

Report MakeReport(const Measurements& found) {
  Report report;
  for (const SharedRun& run : found.shared) {
    SharedStats stats;
    stats.allocation_bytes = run.allocation_bytes;
    stats.allocations = run.allocations;
    stats.cold_suspend = SuspendStats({run.cold});
    stats.cold_resume = ResumeStats({run.cold});
    stats.suspend = SuspendStats(run.warm);
    stats.resume = ResumeStats(run.warm);
    stats.stacks_kept_suspend = SuspendStats(run.stacks_kept);
    stats.stacks_kept_resume = ResumeStats(run.stacks_kept);
    std::vector<double> held;
    for (const Round& round : run.warm) held.push_back(static_cast<double>(round.held_bytes));
    stats.held_bytes = StatsOf(std::move(held));
    report.shared.push_back(std::move(stats));
  }
  for (const DriverRun& run : found.driver_alone) {
    report.driver_alone.push_back(
        {run.huge_pages, SuspendStats(run.rounds), ResumeStats(run.rounds)});
  }
  report.control_suspend = SuspendStats(found.control);
  report.control_resume = ResumeStats(found.control);
  const auto bytes = static_cast<double>(found.size_bytes);
  report.suspend_limit_s = std::max(Divide(bytes, found.wire.to_arena_bytes_per_s),
                                    report.control_suspend.driver_calls.median);
  report.resume_limit_s = std::max(Divide(bytes, found.wire.to_gpu_bytes_per_s),
                                   report.control_resume.driver_calls.median);
  if (!report.shared.empty()) AddRatios(report);
  if (found.hashing.bytes_per_s > 0) {
    report.ratios.push_back({"hashing_tb_per_s", "hashing of blocks on the GPU, TB/s",
                             found.hashing.bytes_per_s / 1e12, 3.0, false});
  }
  return report;
}

}  // namespace stasis::bench
