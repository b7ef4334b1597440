// Parts of the output that the reports of `stasis bench` have in common.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/report.h"

namespace stasis::bench {

// Returns "12.3 GB/s" or "456 MB/s".
std::string RateText(double bytes_per_s);
// Returns the rate as text, or an empty string if `bytes` or `seconds` is 0.
std::string RateOver(uint64_t bytes, double seconds);

// Rows of a table of times (cli::FormatTable). The rate is that of the median.
extern const std::vector<std::string> kTimesHeading;
std::vector<std::string> TimesRow(const std::string& name, const Stats& seconds, uint64_t bytes);

// A table of ratios with their targets. States whether the targets are met only if `meaningful` is
// set.
std::string RatiosText(const std::vector<Ratio>& ratios, bool meaningful);

nlohmann::json StatsJson(const Stats& stats);
nlohmann::json RatiosJson(const std::vector<Ratio>& ratios);
// Returns the kernel's version and the number of processors.
nlohmann::json MachineJson();

}  // namespace stasis::bench
