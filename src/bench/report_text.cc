#include "bench/report_text.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <thread>

#include "cli/table.h"
#include "cli/verb.h"

namespace stasis::bench {

using nlohmann::json;

const std::vector<std::string> kTimesHeading = {"", "MEDIAN", "LEAST", "MOST", "RATE"};

std::string RateText(double bytes_per_s) {
  return bytes_per_s < 1e9 ? fmt::format("{:.0f} MB/s", bytes_per_s / 1e6)
                           : fmt::format("{:.1f} GB/s", bytes_per_s / 1e9);
}

std::string RateOver(uint64_t bytes, double seconds) {
  return bytes > 0 && seconds > 0 ? RateText(static_cast<double>(bytes) / seconds) : "";
}

std::vector<std::string> TimesRow(const std::string& name, const Stats& seconds, uint64_t bytes) {
  return {name, cli::FormatSeconds(seconds.median), cli::FormatSeconds(seconds.min),
          cli::FormatSeconds(seconds.max), RateOver(bytes, seconds.median)};
}

std::string RatiosText(const std::vector<Ratio>& ratios, bool meaningful) {
  std::vector<std::vector<std::string>> rows;
  for (const Ratio& ratio : ratios) {
    rows.push_back({"  " + ratio.what, fmt::format("{:.2f}", ratio.value),
                    fmt::format("{} {:.2f}", ratio.at_most ? "at most" : "at least", ratio.bar),
                    !meaningful   ? ""
                    : ratio.met() ? "met"
                                  : "not met"});
  }
  return cli::FormatTable(rows);
}

json StatsJson(const Stats& stats) {
  return {{"median", stats.median}, {"min", stats.min}, {"max", stats.max}};
}

json RatiosJson(const std::vector<Ratio>& ratios) {
  json list = json::array();
  for (const Ratio& ratio : ratios) {
    list.push_back({{"name", ratio.name},
                    {"what", ratio.what},
                    {"value", ratio.value},
                    {"bar", ratio.bar},
                    {"at_most", ratio.at_most},
                    {"met", ratio.met()}});
  }
  return list;
}

json MachineJson() {
  utsname kernel{};
  ::uname(&kernel);
  return {{"kernel", kernel.release}, {"processors", std::thread::hardware_concurrency()}};
}

}  // namespace stasis::bench
