// The report of a conformance run (`stasis check --gpu`): one JSON document of bounded size, which
// the owner of a GPU sends to the developers. docs/schema/gpu-report.json describes it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stasis::conformance {

enum class Verdict { kPassed, kFailed, kSkipped };
std::string_view VerdictName(Verdict verdict);  // "passed", "failed", "skipped"

struct Step {
  std::string id;
  std::string title;
  Verdict verdict = Verdict::kSkipped;
  double seconds = 0;
  std::string message;
  std::string log;     // output of the commands of a failed step
  std::string result;  // the JSON document that a command of Stasis printed; empty if there is none
};

struct Report {
  std::string gpu;      // "amd"
  std::string version;  // of Stasis
  std::string began;    // UTC, "2026-11-27T12:00:00Z"
  std::string driver;   // the driver's kind in `stasis gpu ls`; empty if unknown
  double seconds = 0;
  // The step that runs at this moment; empty at the end. A report that names one belongs to a run
  // that was killed, or to a machine that crashed.
  std::string unfinished;
  std::vector<std::pair<std::string, std::string>> machine;
  std::vector<Step> steps;

  bool passed() const;
};

// Bounds of a report. Longer texts lose their beginning.
inline constexpr size_t kMaxMessageBytes = 2 << 10;
inline constexpr size_t kMaxLogBytes = 16 << 10;
inline constexpr size_t kMaxResultBytes = 16 << 10;
inline constexpr size_t kMaxFactBytes = 4 << 10;

// Returns valid UTF-8.
nlohmann::json ToJson(const Report& report);

}  // namespace stasis::conformance
