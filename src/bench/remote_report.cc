#include "bench/remote_report.h"

#include <fmt/format.h>

#include <utility>

#include "bench/report_text.h"
#include "cli/table.h"
#include "cli/verb.h"

namespace stasis::bench {
namespace {

using nlohmann::json;

// The project's targets for encrypted repositories.
constexpr double kPushOverPut = 0.8;
constexpr double kRestoreOverGet = 0.9;

template <class Member>
Stats StatsOver(const RemoteMeasurements& found, Member member) {
  std::vector<double> values;
  for (const RemoteRound& round : found.rounds) values.push_back(round.*member);
  return StatsOf(std::move(values));
}

// All transfers move the same bytes, so the ratio of the rates is the inverse of the ratio of the
// times.
Ratio RateRatio(std::string name, std::string what, const Stats& ours, const Stats& plain,
                double bar) {
  const double value = ours.median > 0 ? plain.median / ours.median : 0;
  return {std::move(name), std::move(what), value, bar, /*at_most=*/false};
}

double RateOf(const RemoteMeasurements& found, const Stats& seconds) {
  return seconds.median > 0 ? static_cast<double>(found.size_bytes) / seconds.median : 0;
}

uint64_t RetriesOf(const RemoteMeasurements& found) {
  uint64_t retries = 0;
  for (const RemoteRound& round : found.rounds) retries += round.retries;
  return retries;
}

json TransferJson(const RemoteMeasurements& found, const Stats& seconds) {
  return {{"seconds", StatsJson(seconds)}, {"bytes_per_s", RateOf(found, seconds)}};
}

json PlainJson(const RemoteMeasurements& found, const Stats& seconds, unsigned parallel) {
  json transfer = TransferJson(found, seconds);
  transfer["parallel"] = parallel;
  return transfer;
}

}  // namespace

RemoteReport MakeRemoteReport(const RemoteMeasurements& found) {
  RemoteReport report;
  report.put = StatsOver(found, &RemoteRound::put_s);
  report.push = StatsOver(found, &RemoteRound::push_s);
  report.get = StatsOver(found, &RemoteRound::get_s);
  report.restore = StatsOver(found, &RemoteRound::restore_s);
  report.ratios = {RateRatio("push_over_put", "rate of a push, divided by that of plain PUTs",
                             report.push, report.put, kPushOverPut),
                   RateRatio("restore_over_get", "rate of a restore, divided by that of plain GETs",
                             report.restore, report.get, kRestoreOverGet)};
  return report;
}

std::string RemoteText(const RemoteSubject& subject, const RemoteMeasurements& found) {
  const RemoteReport report = MakeRemoteReport(found);
  const uint64_t bytes = found.size_bytes;
  std::string text = fmt::format(
      "stasis bench: {} of GPU memory, repository {} at {}\n"
      "{}; {} rounds; plain: {} objects of {}; local image in {}\n\n",
      cli::FormatBytes(bytes), subject.name, subject.location,
      subject.encrypted ? "encrypted" : "not encrypted", found.rounds.size(), found.objects,
      cli::FormatBytes(found.object_bytes), subject.store);
  text += cli::FormatTable(
      {kTimesHeading,
       TimesRow(fmt::format("plain PUTs, {} at a time", found.put_parallel), report.put, bytes),
       TimesRow("push", report.push, bytes),
       TimesRow(fmt::format("plain GETs, {} at a time", found.get_parallel), report.get, bytes),
       TimesRow("restore, into host memory", report.restore, bytes)});
  text += "\nratios\n" + RatiosText(report.ratios, subject.encrypted);
  if (const uint64_t retries = RetriesOf(found); retries > 0) {
    text += fmt::format("\n{} requests were repeated\n", retries);
  }
  text += fmt::format("\nevery word was compared after each restore; total time {}\n",
                      cli::FormatSeconds(found.total_s));
  return text;
}

json RemoteJson(const RemoteSubject& subject, const RemoteMeasurements& found) {
  const RemoteReport report = MakeRemoteReport(found);
  json rounds = json::array();
  for (const RemoteRound& round : found.rounds) {
    rounds.push_back({{"put_s", round.put_s},
                      {"push_s", round.push_s},
                      {"get_s", round.get_s},
                      {"restore_s", round.restore_s},
                      {"push_requests", round.push_requests},
                      {"retries", round.retries}});
  }
  return {
      {"stasis", STASIS_VERSION},
      {"repository",
       {{"name", subject.name}, {"location", subject.location}, {"encrypted", subject.encrypted}}},
      {"store", subject.store},
      {"machine", MachineJson()},
      {"size_bytes", found.size_bytes},
      {"object_bytes", found.object_bytes},
      {"objects", found.objects},
      {"put", PlainJson(found, report.put, found.put_parallel)},
      {"push", TransferJson(found, report.push)},
      {"get", PlainJson(found, report.get, found.get_parallel)},
      {"restore", TransferJson(found, report.restore)},
      {"ratios", RatiosJson(report.ratios)},
      {"rounds", rounds},
      {"total_s", found.total_s}};
}

}  // namespace stasis::bench
