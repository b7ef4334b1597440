#include "cli/account.h"

#include <fmt/format.h>

#include "cli/verb.h"

namespace stasis::cli {
namespace {

using coordinator::OperationResult;
using coordinator::PhaseReport;

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
                        FormatBytes(static_cast<uint64_t>(phase.bytes_per_s())));
  }
  if (phase.parallel) line += "  (in parallel)";
  return line;
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
  if (result.keep_context) {
    text += fmt::format("  stays on the GPU {}: its context", FormatBytes(driver));
    if (result.staying_bytes > 0) {
      text += fmt::format(", and {} of its memory that only the driver could take",
                          FormatBytes(result.staying_bytes));
    }
    text += '\n';
  } else if (driver > 0) {
    text += fmt::format("  driver carried {}{}\n", FormatBytes(driver),
                        result.shared_bytes > 0 ? ": contexts, modules and what else is its own"
                                                : " (opaque path)");
  }
  for (const auto& why : result.left_to_driver)
    text += fmt::format("  left to the driver: {}\n", why);
  return text;
}

std::string WrittenText(const char* what, const coordinator::StoredPart& part) {
  if (part.raw == 0) return "";
  std::string text = fmt::format("{} {}", what, FormatBytes(part.written));
  if (part.written < part.raw) {
    text += fmt::format(" (compressed from {})", FormatBytes(part.raw));
  }
  return text;
}

std::string NotWrittenText(const char* what, const coordinator::StoredPart& part) {
  const std::string kept = BytesOfKinds({{part.shared, "as in earlier images"},
                                         {part.repeated, "the same once more"},
                                         {part.zero, "zero"}});
  return kept.empty() ? "" : fmt::format("  {} not written:{}\n", what, kept);
}

std::string StoredText(const OperationResult& result) {
  const coordinator::Stored& stored = result.stored;
  if (stored.added == 0) return "";
  std::string text = fmt::format("  written {}", FormatBytes(stored.added));
  const std::string gpu = WrittenText("GPU memory", stored.gpu);
  const std::string cpu = WrittenText("CPU memory", stored.cpu);
  if (!gpu.empty()) text += ", of it " + gpu;
  if (!cpu.empty()) text += (gpu.empty() ? ", of it " : " and ") + cpu;
  text += '\n';
  return text + NotWrittenText("GPU memory", stored.gpu) + NotWrittenText("CPU memory", stored.cpu);
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

}  // namespace stasis::cli
