#include "api/metrics_registry.h"

#include <gmock/gmock.h>

#include <limits>

namespace stasis::api {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kBounds[] = {0.5, 2};
constexpr MetricFamily kFamilies[] = {
    {"a_total", MetricType::kCounter, "verb,code", "What was counted", {}},
    {"b_bytes", MetricType::kGauge, "", "How much", {}},
    {"c_seconds", MetricType::kHistogram, "verb", "How long", kBounds},
};

TEST(MetricsRegistryTest, PrintsEachKind) {
  MetricsRegistry registry(kFamilies);
  registry.Add(0, {"dump", "OK"}, 1);
  registry.Add(0, {"dump", "OK"}, 2);
  registry.Set(1, {}, 1e15);
  registry.Set(1, {}, 17);
  for (double seconds : {0.25, 0.5, 1.0, 9.0}) registry.Observe(2, {"dump"}, seconds);
  EXPECT_EQ(registry.Text(),
            "# HELP a_total What was counted\n# TYPE a_total counter\n"
            "a_total{verb=\"dump\",code=\"OK\"} 3\n"
            "# HELP b_bytes How much\n# TYPE b_bytes gauge\n"
            "b_bytes 17\n"
            "# HELP c_seconds How long\n# TYPE c_seconds histogram\n"
            "c_seconds_bucket{verb=\"dump\",le=\"0.5\"} 2\n"
            "c_seconds_bucket{verb=\"dump\",le=\"2\"} 3\n"
            "c_seconds_bucket{verb=\"dump\",le=\"+Inf\"} 4\n"
            "c_seconds_sum{verb=\"dump\"} 10.75\n"
            "c_seconds_count{verb=\"dump\"} 4\n");
}

TEST(MetricsRegistryTest, AnyLabelStaysOneLabel) {
  MetricsRegistry registry(kFamilies);
  registry.Add(0, {"a\"} 1\nb{\\", std::string(1000, 'x')}, 1);
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("a_total{verb=\"a\\\"} 1\\nb{\\\\\",code=\"xxx"));
  EXPECT_THAT(text, Not(HasSubstr(std::string(MetricsRegistry::kMaxLabelBytes + 1, 'x'))));
}

TEST(MetricsRegistryTest, SeriesAboveTheLimitShareOne) {
  MetricsRegistry registry(kFamilies);
  for (size_t i = 0; i < MetricsRegistry::kMaxSeries + 10; ++i) {
    registry.Add(0, {"v", std::to_string(i)}, 1);
  }
  EXPECT_THAT(registry.Text(), HasSubstr("a_total{verb=\"other\",code=\"other\"} 10\n"));
}

TEST(MetricsRegistryTest, AClearedFamilyHasNoSeries) {
  MetricsRegistry registry(kFamilies);
  registry.Set(1, {}, std::numeric_limits<double>::infinity());
  EXPECT_THAT(registry.Text(), HasSubstr("b_bytes +Inf\n"));
  registry.Clear(1);
  EXPECT_THAT(registry.Text(), Not(HasSubstr("\nb_bytes ")));
}

}  // namespace
}  // namespace stasis::api
