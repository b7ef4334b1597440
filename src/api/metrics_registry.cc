#include "api/metrics_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace stasis::api {
namespace {

constexpr const char* kTypeNames[] = {"counter", "gauge", "histogram"};

std::vector<std::string> NamesOf(const MetricFamily& family) {
  std::vector<std::string> names;
  std::istringstream list(family.labels);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

// The format escapes three characters. Callers pass valid UTF-8.
std::string Escaped(const std::string& value) {
  std::string text;
  for (char c : value.substr(0, MetricsRegistry::kMaxLabelBytes)) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? "\\n" : std::string(1, c);
  }
  return text;
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// Returns the labels as text, for example {verb="dump",le="1"}, or an empty string if there are
// none.
std::string Braces(const std::vector<std::string>& names, const MetricLabels& values,
                   const std::string& bound = "") {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", names[i],
                        Escaped(i < values.size() ? values[i] : ""));
  }
  if (!bound.empty()) text += fmt::format("{}le=\"{}\"", text.empty() ? "" : ",", bound);
  return text.empty() ? text : "{" + text + "}";
}

}  // namespace

MetricsRegistry::MetricsRegistry(std::span<const MetricFamily> families)
    : families_(families), series_(families.size()) {}

MetricsRegistry::Series& MetricsRegistry::FindOrAdd(size_t family, const MetricLabels& labels) {
  AllSeries& all = series_.at(family);
  if (auto found = all.find(labels); found != all.end()) return found->second;
  const bool full = all.size() >= kMaxSeries && !labels.empty();
  Series& series = all[full ? MetricLabels(labels.size(), "other") : labels];
  // The last bucket counts values above all bounds.
  series.counts.resize(families_[family].bounds.size() + 1);
  return series;
}

void MetricsRegistry::Add(size_t family, const MetricLabels& labels, double value) {
  std::lock_guard lock(mutex_);
  FindOrAdd(family, labels).value += value;
}

void MetricsRegistry::Set(size_t family, const MetricLabels& labels, double value) {
  std::lock_guard lock(mutex_);
  FindOrAdd(family, labels).value = value;
}

void MetricsRegistry::Observe(size_t family, const MetricLabels& labels, double value) {
  std::lock_guard lock(mutex_);
  Series& series = FindOrAdd(family, labels);
  series.value += value;
  const auto& bounds = families_[family].bounds;
  const auto at = std::lower_bound(bounds.begin(), bounds.end(), value);
  ++series.counts[static_cast<size_t>(at - bounds.begin())];
}

void MetricsRegistry::Clear(size_t family) {
  std::lock_guard lock(mutex_);
  series_.at(family).clear();
}

std::string MetricsRegistry::Text() const {
  std::lock_guard lock(mutex_);
  std::string text;
  for (size_t i = 0; i < families_.size(); ++i) {
    const MetricFamily& family = families_[i];
    const auto names = NamesOf(family);
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", family.name, family.meaning, family.name,
                        kTypeNames[static_cast<size_t>(family.type)]);
    for (const auto& [labels, series] : series_[i]) {
      if (family.type != MetricType::kHistogram) {
        text += fmt::format("{}{} {}\n", family.name, Braces(names, labels), Number(series.value));
        continue;
      }
      uint64_t count = 0;
      for (size_t b = 0; b < series.counts.size(); ++b) {
        count += series.counts[b];
        const std::string bound = b < family.bounds.size() ? Number(family.bounds[b]) : "+Inf";
        text += fmt::format("{}_bucket{} {}\n", family.name, Braces(names, labels, bound), count);
      }
      const std::string braces = Braces(names, labels);
      text += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", family.name, braces,
                          Number(series.value), count);
    }
  }
  return text;
}

}  // namespace stasis::api
