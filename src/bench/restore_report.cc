#include "bench/restore_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "abi/driver_kinds.h"
#include "bench/report_text.h"
#include "cli/table.h"
#include "cli/verb.h"

namespace stasis::bench {
namespace {

using nlohmann::json;

struct StageRow {
  double StageTimes::*seconds;
  std::set<std::string> phases;
};
// Phases that belong to no stage, such as adopt, are short.
const StageRow kStages[] = {
    {&StageTimes::storage,
     {"data-read", "image-verify", "cpu-read", "data-write", "cpu-write", "commit"}},
    {&StageTimes::cpu, {"cpu-restore", "cpu-dump"}},
    {&StageTimes::gpu,
     {"load-room", "data-load", "data-bind", "gpu-restore", "gpu-unlock", "data-return",
      "data-room", "gate-close", "data-export", "data-release", "gpu-lock", "gpu-checkpoint",
      "data-save", "data-commit", "gpu-release-check"}}};

// Returns the length of the union of the phases' intervals.
double TimeOf(const json& account, const std::set<std::string>& names) {
  std::vector<std::pair<double, double>> intervals;
  for (const json& phase : account.at("phases")) {
    if (!names.contains(phase.at("name").get<std::string>())) continue;
    const double start = phase.at("start_s").get<double>();
    intervals.emplace_back(start, start + phase.at("seconds").get<double>());
  }
  std::sort(intervals.begin(), intervals.end());
  double sum = 0, reached = 0;
  for (const auto& [start, end] : intervals) {
    sum += std::max(0.0, end - std::max(start, reached));
    reached = std::max(reached, end);
  }
  return sum;
}

template <class Get>
Stats StatsOver(const RestoreSeries& series, const Get& get) {
  std::vector<double> values;
  for (const RestoreRound& round : series.rounds) values.push_back(get(round));
  return StatsOf(std::move(values));
}

json StagesJson(const StageTimes& stages) {
  return {{"storage_s", stages.storage}, {"cpu_s", stages.cpu}, {"gpu_s", stages.gpu}};
}

const char* PathName(const RestoreSeries& series) { return series.agent ? "agent" : "driver"; }

}  // namespace

StageTimes StagesOf(const json& account) {
  StageTimes times;
  for (const StageRow& row : kStages) times.*row.seconds = TimeOf(account, row.phases);
  return times;
}

RestoreStats StatsOfSeries(const RestoreSeries& series) {
  auto stage = [&](double StageTimes::*seconds) {
    return StatsOver(series, [&](const auto& round) { return StagesOf(*round.account).*seconds; });
  };
  RestoreStats stats;
  stats.storage = stage(&StageTimes::storage);
  stats.cpu = stage(&StageTimes::cpu);
  stats.gpu = stage(&StageTimes::gpu);
  stats.command = StatsOver(series, [](const auto& round) { return round.command_s; });
  stats.answer = StatsOver(series, [](const auto& round) { return round.answer_s; });
  return stats;
}

std::string RestoreText(const RestoreSubject& subject, const RestoreMeasurements& found) {
  const bool meaningful = abi::IsHardware(subject.driver.kind);
  std::string text = fmt::format("stasis bench --restore: {} on GPU {}, {}\ndriver {} {}\n\n",
                                 cli::FormatBytes(found.size_bytes), subject.gpu.index,
                                 subject.gpu.name, subject.driver.kind, subject.driver.version);
  using cli::FormatSeconds;
  std::vector<std::vector<std::string>> restores = {
      {"restore", "storage", "CPU side", "GPU side", "command", "first answer", "min", "max"}};
  std::vector<std::vector<std::string>> dumps = {
      {"dump", "storage", "CPU side", "GPU side", "command"}};
  for (const RestoreSeries& series : found.series) {
    const std::string name = fmt::format("{}, {}", PathName(series), series.source);
    const RestoreStats stats = StatsOfSeries(series);
    restores.push_back({name, FormatSeconds(stats.storage.median), FormatSeconds(stats.cpu.median),
                        FormatSeconds(stats.gpu.median), FormatSeconds(stats.command.median),
                        FormatSeconds(stats.answer.median), FormatSeconds(stats.answer.min),
                        FormatSeconds(stats.answer.max)});
    const StageTimes stages = StagesOf(*series.dump);
    dumps.push_back({name, FormatSeconds(stages.storage), FormatSeconds(stages.cpu),
                     FormatSeconds(stages.gpu), FormatSeconds(series.dump_s)});
  }
  text += cli::FormatTable(restores) + "\n" + cli::FormatTable(dumps);
  text += fmt::format(
      "\nmedians; stages overlap, and with the agent the CPU side waits for the GPU data\n"
      "contents verified after every restore; total time {}\n",
      FormatSeconds(found.total_s));
  if (!meaningful) text += "run on the software GPU: the times say nothing about a real GPU\n";
  return text;
}

json RestoreJson(const RestoreSubject& subject, const RestoreMeasurements& found) {
  json all = json::array();
  for (const RestoreSeries& series : found.series) {
    const RestoreStats stats = StatsOfSeries(series);
    json rounds = json::array();
    for (const RestoreRound& round : series.rounds) {
      rounds.push_back({{"command_s", round.command_s},
                        {"first_answer_s", round.answer_s},
                        {"stages", StagesJson(StagesOf(*round.account))},
                        {"restore", *round.account}});
    }
    all.push_back({{"path", PathName(series)},
                   {"source", series.source},
                   {"storage", StatsJson(stats.storage)},
                   {"cpu", StatsJson(stats.cpu)},
                   {"gpu", StatsJson(stats.gpu)},
                   {"command", StatsJson(stats.command)},
                   {"first_answer", StatsJson(stats.answer)},
                   {"dump_s", series.dump_s},
                   {"dump_stages", StagesJson(StagesOf(*series.dump))},
                   {"dump", *series.dump},
                   {"rounds", rounds}});
  }
  return {{"stasis", STASIS_VERSION},
          {"driver", {{"kind", subject.driver.kind}, {"version", subject.driver.version}}},
          {"times_mean_something", abi::IsHardware(subject.driver.kind)},
          {"gpu",
           {{"uuid", subject.gpu.uuid.value},
            {"index", subject.gpu.index},
            {"name", subject.gpu.name},
            {"total_bytes", subject.gpu.total_bytes},
            {"free_bytes", subject.gpu.free_bytes}}},
          {"machine", MachineJson()},
          {"size_bytes", found.size_bytes},
          {"series", all},
          {"total_s", found.total_s}};
}

}  // namespace stasis::bench
