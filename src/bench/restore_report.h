// The results of `stasis bench --restore`: for each source of the image and each path, the times of
// the stages that published figures of restores have.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/restore_measure.h"
#include "device/device_control.h"

namespace stasis::bench {

// The time during which at least one phase of a stage ran. Stages overlap.
struct StageTimes {
  double storage = 0;  // reads, checks and rebuilds files
  double cpu = 0;      // CRIU
  double gpu = 0;      // data to GPU memory, and the driver
};
// `account` is the JSON of a restore or of a dump.
StageTimes StagesOf(const nlohmann::json& account);

struct RestoreStats {
  Stats storage, cpu, gpu, command, answer;
};
RestoreStats StatsOfSeries(const RestoreSeries& series);

struct RestoreSubject {
  device::Gpu gpu;
  device::DriverInfo driver;
};
std::string RestoreText(const RestoreSubject& subject, const RestoreMeasurements& found);
// Returns the document that docs/schema/bench-restore.json describes.
nlohmann::json RestoreJson(const RestoreSubject& subject, const RestoreMeasurements& found);

}  // namespace stasis::bench
