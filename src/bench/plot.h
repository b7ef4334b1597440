// The plot of a report, drawn by stasis-plot, a Python script (tools/plot_bench.py).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace stasis::bench {

// Reports an unwritable path now, before minutes of work. An empty path stands for no plot.
Status CheckPlotWritable(const std::string& path);

// Replaces an existing file only after the plot is complete.
Status WritePlot(const std::string& path, const nlohmann::json& report);

}  // namespace stasis::bench
