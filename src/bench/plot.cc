#include "bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace stasis::bench {
namespace {

constexpr int kWidth = 960;
constexpr int kLeft = 200;   // left margin with names
constexpr int kRight = 120;  // right margin with figures
constexpr int kRow = 24;
constexpr int kBar = 16;
constexpr double kSpan = kWidth - kLeft - kRight;

// The kinds of phases; those not listed belong to the plan itself.
struct Kind {
  std::string_view colour;
  std::string_view legend;
  std::vector<std::string_view> phases;
};
const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {"#2a6fbb",
       "data: mover",
       {"data-room", "data-save", "data-commit", "data-free", "load-room", "data-load"}},
      {"#d9822b",
       "control: driver",
       {"gpu-control", "gpu-lock", "gpu-checkpoint", "gpu-restore", "gpu-unlock"}},
      {"#3a9d5d", "program: gate and memory", {"gate-close", "data-export", "data-return"}},
      {"#9aa0a6", "everything else", {}},
  };
  return kinds;
}

std::string_view ColourOf(std::string_view phase) {
  for (const Kind& kind : Kinds()) {
    if (std::find(kind.phases.begin(), kind.phases.end(), phase) != kind.phases.end()) {
      return kind.colour;
    }
  }
  return Kinds().back().colour;
}

std::string Escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Seconds(double seconds) {
  if (seconds == 0) return "0";
  return seconds < 0.1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

class Canvas {
 public:
  void Text(double x, double y, std::string_view text, std::string_view more = {}) {
    body_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, Escape(text));
  }
  void Box(double x, double y, double width, double height, std::string_view colour) {
    body_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y,
        std::max(width, 0.7), height, colour);
  }
  void Line(double x1, double y1, double x2, double y2, std::string_view more) {
    body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1,
                         y1, x2, y2, more);
  }
  void Head(std::string_view text) {
    y_ += 14;
    Text(20, y_ + 14, text, "font-weight=\"bold\"");
    y_ += 26;
  }
  // Draws a bar from `start` to `start + length` seconds; `scale` seconds are the full width.
  void Row(std::string_view name, double start, double length, double scale,
           std::string_view colour, std::string_view figure) {
    const double x = kLeft + start / scale * kSpan;
    const double width = length / scale * kSpan;
    Text(kLeft - 8, y_ + 13, name, "text-anchor=\"end\"");
    Box(x, y_ + 2, width, kBar, colour);
    Text(x + std::max(width, 0.7) + 6, y_ + 13, figure, "class=\"figure\"");
    y_ += kRow;
  }
  double y() const { return y_; }
  void Skip(double pixels) { y_ += pixels; }

  std::string Finish() const {
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
               "viewBox=\"0 0 {0} {1:.0f}\">\n"
               "<style>text{{font:12px sans-serif;fill:#202124}}.figure{{fill:#5f6368}}</style>\n"
               "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
               kWidth, y_ + 16) +
           body_ + "</svg>\n";
  }

 private:
  std::string body_;
  double y_ = 16;
};

void DrawAxis(Canvas& canvas, double scale) {
  // 1, 2 or 5 times a power of ten, four to ten steps in total.
  double step = std::pow(10, std::floor(std::log10(scale)));
  if (scale / step < 2) {
    step /= 5;
  } else if (scale / step < 4) {
    step /= 2;
  }
  const double y = canvas.y();
  canvas.Line(kLeft, y, kLeft + kSpan, y, "stroke=\"#9aa0a6\"");
  for (double at = 0; at <= scale * 1.0001; at += step) {
    const double x = kLeft + at / scale * kSpan;
    canvas.Line(x, y, x, y + 4, "stroke=\"#9aa0a6\"");
    canvas.Text(x, y + 16, Seconds(at), "class=\"figure\" text-anchor=\"middle\"");
  }
  canvas.Skip(20);
}

// Draws the phases of one operation at their start times, and `limit` as a line.
void DrawPhases(Canvas& canvas, const std::string& head, const OperationStats& stats,
                double limit) {
  if (stats.phases.empty()) return;
  canvas.Head(head);
  const double look = stats.phases.front().seconds.median;
  const double scale = std::max({stats.seconds.median, limit, 1e-6});
  const double top = canvas.y();
  for (const PhaseStats& phase : stats.phases) {
    std::string figure = Seconds(phase.seconds.median);
    if (phase.bytes > 0 && phase.seconds.median > 0) {
      figure += fmt::format(", {:.1f} GB/s",
                            static_cast<double>(phase.bytes) / phase.seconds.median / 1e9);
    }
    canvas.Row(phase.name, phase.start_s + look, phase.seconds.median, scale, ColourOf(phase.name),
               figure);
  }
  const double x = kLeft + limit / scale * kSpan;
  canvas.Line(x, top, x, canvas.y(), "stroke=\"#c5221f\" stroke-dasharray=\"4 3\"");
  DrawAxis(canvas, scale);
}

struct Bar {
  std::string name;
  double seconds;
  std::string_view colour;
};

void DrawBars(Canvas& canvas, const std::string& head, const std::vector<Bar>& bars) {
  canvas.Head(head);
  double scale = 1e-6;
  for (const Bar& bar : bars) scale = std::max(scale, bar.seconds);
  for (const Bar& bar : bars) {
    canvas.Row(bar.name, 0, bar.seconds, scale, bar.colour, Seconds(bar.seconds));
  }
  DrawAxis(canvas, scale);
}

std::vector<Bar> BarsOf(const Report& report, bool out) {
  const std::string_view ours = Kinds()[0].colour;
  const std::string_view driver_colour = Kinds()[1].colour;
  std::vector<Bar> bars = {
      {"limit", out ? report.suspend_limit_s : report.resume_limit_s, "#c5221f"}};
  for (const SharedStats& shared : report.shared) {
    const std::string which =
        report.shared.size() > 1 ? fmt::format(" ({} pieces)", shared.allocations) : "";
    const OperationStats& warm = out ? shared.suspend : shared.resume;
    const OperationStats& cold = out ? shared.cold_suspend : shared.cold_resume;
    bars.push_back({"shared, warm" + which, warm.seconds.median, ours});
    bars.push_back({"shared, first" + which, cold.seconds.median, ours});
  }
  for (const DriverStats& driver : report.driver_alone) {
    bars.push_back({"driver alone (" + driver.huge_pages + ")",
                    (out ? driver.suspend : driver.resume).driver_calls.median, driver_colour});
  }
  bars.push_back({"driver, bare context",
                  (out ? report.control_suspend : report.control_resume).driver_calls.median,
                  driver_colour});
  return bars;
}

void DrawLegend(Canvas& canvas) {
  double x = 20;
  for (const Kind& kind : Kinds()) {
    canvas.Box(x, canvas.y() + 4, 12, 12, kind.colour);
    canvas.Text(x + 18, canvas.y() + 14, kind.legend);
    x += 200;
  }
  canvas.Line(x, canvas.y() + 10, x + 14, canvas.y() + 10,
              "stroke=\"#c5221f\" stroke-dasharray=\"4 3\"");
  canvas.Text(x + 20, canvas.y() + 14, "limit");
  canvas.Skip(kRow);
}

}  // namespace

std::string PlotSvg(const Report& report, const std::string& title, const std::string& subtitle) {
  Canvas canvas;
  canvas.Text(20, canvas.y() + 10, title, "font-weight=\"bold\" style=\"font-size:16px\"");
  canvas.Text(20, canvas.y() + 30, subtitle, "class=\"figure\"");
  canvas.Skip(38);
  DrawLegend(canvas);
  if (!report.shared.empty()) {
    DrawPhases(canvas, "Suspend, warm, by phases", report.shared.front().suspend,
               report.suspend_limit_s);
    DrawPhases(canvas, "Resume, warm, by phases", report.shared.front().resume,
               report.resume_limit_s);
  }
  DrawBars(canvas, "Suspend, beside the driver alone", BarsOf(report, true));
  DrawBars(canvas, "Resume, beside the driver alone", BarsOf(report, false));
  return canvas.Finish();
}

}  // namespace stasis::bench
