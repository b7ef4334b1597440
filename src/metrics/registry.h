// Figures, kept in memory and printed in Prometheus' text format 0.0.4. Which there are is a table
// of the caller's; a figure is found by its place in it.
//
// Thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace stasis::metrics {

enum class Type : uint8_t { kCounter, kGauge, kHistogram };

struct Family {
  const char* name;
  Type type;
  const char* labels;  // their names, "verb,outcome"; empty: none
  const char* meaning;
  std::span<const double> bounds;  // of a histogram, ascending; the one above all is understood
};

// The values of a family's labels, in their order.
using Labels = std::vector<std::string>;

class Registry {
 public:
  // Of one family. What comes after has "other" for all of its labels: who chooses a label must not
  // fill our memory.
  static constexpr size_t kMaxSeries = 512;
  static constexpr size_t kMaxLabelBytes = 128;

  // `families` stays the caller's.
  explicit Registry(std::span<const Family> families);

  void Add(size_t family, const Labels& labels, double value);      // counters
  void Set(size_t family, const Labels& labels, double value);      // gauges
  void Observe(size_t family, const Labels& labels, double value);  // histograms
  // Forgets all series of it: what they were of may be gone.
  void Clear(size_t family);

  std::string Text() const;

 private:
  struct Series {
    double value = 0;  // of a histogram: the sum
    std::vector<uint64_t> counts;
  };
  using AllSeries = std::map<Labels, Series>;

  Series& Of(size_t family, const Labels& labels);

  mutable std::mutex mutex_;
  const std::span<const Family> families_;
  std::vector<AllSeries> series_;
};

}  // namespace stasis::metrics
