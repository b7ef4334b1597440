// The report as a picture: one SVG file that needs nothing else.
#pragma once

#include <string>

#include "bench/report.h"

namespace stasis::bench {

// `title` and `subtitle` are plain text. The phases of a median round, then shared path and driver
// on one scale.
std::string PlotSvg(const Report& report, const std::string& title, const std::string& subtitle);

}  // namespace stasis::bench
