// Metrics in memory, printed in Prometheus' text format 0.0.4. The caller supplies a table of
// families and names a family by its index.
//
// Safe to use from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace stasis::api {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

struct MetricFamily {
  const char* name;
  MetricType type;
  const char* labels;  // names, for example "verb,outcome"; may be empty
  const char* meaning;
  std::span<const double> bounds = {};  // of a histogram, ascending, without +Inf
};

// The values of a family's labels, in their order.
using MetricLabels = std::vector<std::string>;

class MetricsRegistry {
 public:
  // The limit for one family. Further series share one whose labels are all "other", because
  // clients choose labels and must not be able to fill the memory.
  static constexpr size_t kMaxSeries = 512;
  static constexpr size_t kMaxLabelBytes = 128;

  // `families` must outlive the registry.
  explicit MetricsRegistry(std::span<const MetricFamily> families);

  void Add(size_t family, const MetricLabels& labels, double value);      // counters
  void Set(size_t family, const MetricLabels& labels, double value);      // gauges
  void Observe(size_t family, const MetricLabels& labels, double value);  // histograms
  // Removes all series of a family.
  void Clear(size_t family);

  std::string Text() const;

 private:
  struct Series {
    double value = 0;  // the sum, for a histogram
    std::vector<uint64_t> counts;
  };
  using AllSeries = std::map<MetricLabels, Series>;

  Series& FindOrAdd(size_t family, const MetricLabels& labels);

  mutable std::mutex mutex_;
  const std::span<const MetricFamily> families_;
  std::vector<AllSeries> series_;
};

}  // namespace stasis::api
