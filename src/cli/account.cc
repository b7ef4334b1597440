#include "cli/account.h"

#include <fmt/format.h>

#include "cli/verb.h"

namespace stasis::cli {
namespace {

using coordinator::OperationResult;
using coordinator::PhaseReport;

double Rate(const PhaseReport& phase) {
  return phase.seconds > 0 ? static_cast<double>(phase.bytes) / phase.seconds : 0;
}

std::string Headline(const OperationResult& result) {
  std::string line = fmt::format("{} {}", result.account.verb, result.target);
  if (!result.job.empty() && result.job != result.target)
    line += fmt::format(", job {}", result.job);
  if (result.pid != 0) line += fmt::format(", process {}", result.pid);
  if (!result.image.empty()) line += fmt::format(", image {}", result.image);
  return line;
}

std::string PhaseLine(const PhaseReport& phase) {
  std::string name = std::string(static_cast<size_t>(phase.depth) * 2, ' ') + phase.name;
  std::string line = fmt::format("  {:<20} {:>10}", name, FormatSeconds(phase.seconds));
  if (phase.bytes > 0) {
    line += fmt::format(" {:>12} {:>10}/s", FormatBytes(phase.bytes),
                        FormatBytes(static_cast<uint64_t>(Rate(phase))));
  }
  if (phase.parallel) line += "  (in parallel)";
  return line;
}

const char* PathName(const OperationResult& result) {
  if (result.shared_bytes == 0) return "opaque";
  return result.left_to_driver.empty() ? "shared" : "mixed";
}

struct Kind {
  uint64_t bytes;
  const char* what;
};
// " 3 MiB zero, 5 MiB ...": of those that there are.
std::string BytesOfKinds(std::initializer_list<Kind> kinds) {
  std::string text;
  for (const Kind& kind : kinds) {
    if (kind.bytes == 0) continue;
    text += fmt::format("{} {} {}", text.empty() ? "" : ",", FormatBytes(kind.bytes), kind.what);
  }
  return text;
}

std::string CarriedText(const OperationResult& result) {
  const uint64_t driver = result.device_bytes - std::min(result.device_bytes, result.shared_bytes);
  std::string text;
  if (result.shared_bytes > 0) {
    text +=
        fmt::format("  data plane carried {} (shared path)\n", FormatBytes(result.shared_bytes));
    const coordinator::Saved& saved = result.saved;
    std::string rest =
        BytesOfKinds({{saved.unchanged, "unchanged since the last time"}, {saved.zero, "zero"}});
    if (!rest.empty()) {
      text += fmt::format("  of it copied {};{}\n", FormatBytes(saved.copied), rest);
    }
  }
  if (driver > 0) {
    text += fmt::format("  driver carried {}{}\n", FormatBytes(driver),
                        result.shared_bytes > 0 ? ": contexts, modules and what else is its own"
                                                : " (opaque path)");
  }
  for (const auto& why : result.left_to_driver)
    text += fmt::format("  left to the driver: {}\n", why);
  return text;
}

std::string StoredText(const OperationResult& result) {
  const coordinator::Stored& stored = result.stored;
  if (stored.added == 0) return "";
  std::string text = fmt::format("  written {}", FormatBytes(stored.added));
  if (stored.gpu_raw > 0) {
    text += fmt::format(", of it GPU memory {}", FormatBytes(stored.gpu));
    if (stored.gpu < stored.gpu_raw) {
      text += fmt::format(" (compressed from {})", FormatBytes(stored.gpu_raw));
    }
  }
  text += '\n';
  std::string kept = BytesOfKinds({{stored.shared, "as in earlier images"},
                                   {stored.repeated, "the same once more"},
                                   {stored.zero, "zero"}});
  if (!kept.empty()) text += "  GPU memory not written:" + kept + '\n';
  return text;
}

}  // namespace

std::string AccountText(const OperationResult& result) {
  std::string text;
  if (!result.planned_phases.empty() && result.account.phases.empty()) {
    text = "Would run these phases:\n";
    for (const auto& phase : result.planned_phases) text += "  " + phase + "\n";
    return text;
  }
  if (!result.account.verb.empty()) text += Headline(result) + "\n";
  for (const PhaseReport& phase : result.account.phases) text += PhaseLine(phase) + "\n";
  if (!result.account.phases.empty()) {
    text += fmt::format("  {:<20} {:>10}", "total", FormatSeconds(result.account.total_s));
    if (result.image_bytes > 0)
      text += fmt::format(" {:>12} in the image", FormatBytes(result.image_bytes));
    text += '\n';
    if (result.pause_s > 0) {
      text += fmt::format("  {:<20} {:>10}  the program stood still, and runs on\n", "pause",
                          FormatSeconds(result.pause_s));
    }
    text += StoredText(result);
  }
  if (result.device_bytes > 0 && !result.account.phases.empty()) text += CarriedText(result);
  if (result.driver_kind == "softgpu" && !result.account.phases.empty()) {
    text += "  on softgpu: the times show that it works, not how fast a GPU would be\n";
  }
  for (const auto& note : result.notes) text += fmt::format("{}: {}\n", result.target, note);
  return text;
}

nlohmann::json AccountJson(const OperationResult& result) {
  nlohmann::json phases = nlohmann::json::array();
  for (const PhaseReport& phase : result.account.phases) {
    phases.push_back({{"name", phase.name},
                      {"start_s", phase.start_s},
                      {"seconds", phase.seconds},
                      {"bytes", phase.bytes},
                      {"bytes_per_s", Rate(phase)},
                      {"parallel", phase.parallel},
                      {"depth", phase.depth}});
  }
  return {{"verb", result.account.verb},
          {"target", result.target},
          {"job", result.job},
          {"pid", result.pid},
          {"image", result.image},
          {"image_bytes", result.image_bytes},
          {"stored",
           {{"added_bytes", result.stored.added},
            {"gpu_bytes", result.stored.gpu},
            {"gpu_uncompressed_bytes", result.stored.gpu_raw},
            {"shared_bytes", result.stored.shared},
            {"repeated_bytes", result.stored.repeated},
            {"zero_bytes", result.stored.zero}}},
          {"device_bytes", result.device_bytes},
          {"shared_bytes", result.shared_bytes},
          {"saved",
           {{"copied_bytes", result.saved.copied},
            {"unchanged_bytes", result.saved.unchanged},
            {"zero_bytes", result.saved.zero}}},
          {"left_to_driver", result.left_to_driver},
          {"path", PathName(result)},
          {"driver", result.driver_kind},
          {"phases", phases},
          {"total_s", result.account.total_s},
          {"pause_s", result.pause_s},
          {"notes", result.notes},
          {"planned_phases", result.planned_phases}};
}

}  // namespace stasis::cli
