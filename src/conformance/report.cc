#include "conformance/report.h"

#include <algorithm>

namespace stasis::conformance {
namespace {

// Returns the last `most` bytes of the text. The writer of the JSON replaces invalid bytes.
std::string Tail(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  return "[…] " + text.substr(text.size() - most);
}

nlohmann::json ToJson(const Step& step) {
  nlohmann::json result;
  if (!step.result.empty() && step.result.size() <= kMaxResultBytes) {
    result = nlohmann::json::parse(step.result);
  }
  return {{"id", step.id},
          {"title", step.title},
          {"verdict", VerdictName(step.verdict)},
          {"seconds", step.seconds},
          {"message", Tail(step.message, kMaxMessageBytes)},
          {"log", Tail(step.log, kMaxLogBytes)},
          {"result", std::move(result)}};
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  static constexpr std::string_view kNames[] = {"passed", "failed", "skipped"};
  return kNames[static_cast<size_t>(verdict)];
}

bool Report::passed() const {
  return unfinished.empty() && std::none_of(steps.begin(), steps.end(), [](const Step& step) {
           return step.verdict == Verdict::kFailed;
         });
}

nlohmann::json ToJson(const Report& report) {
  nlohmann::json machine = nlohmann::json::object();
  for (const auto& [name, text] : report.machine) machine[name] = Tail(text, kMaxFactBytes);
  nlohmann::json steps = nlohmann::json::array();
  for (const Step& step : report.steps) steps.push_back(ToJson(step));
  return {{"report", "stasis conformance"},
          {"format", 1},
          {"gpu", report.gpu},
          {"stasis", report.version},
          {"began", report.began},
          {"driver", report.driver},
          {"seconds", report.seconds},
          {"passed", report.passed()},
          {"unfinished", report.unfinished},
          {"machine", std::move(machine)},
          {"steps", std::move(steps)}};
}

}  // namespace stasis::conformance
