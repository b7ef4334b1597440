// Draws the report as one self-contained SVG file.
#pragma once

#include <string>

#include "bench/report.h"

namespace stasis::bench {

// Draws the phases of a median round, and the shared path and the driver on one scale. `title` and
// `subtitle` are plain text.
std::string PlotSvg(const Report& report, const std::string& title, const std::string& subtitle);

}  // namespace stasis::bench
