#include "cli/account.h"

#include <fmt/format.h>

#include <algorithm>

#include "abi/driver_kinds.h"
#include "cli/verb.h"

namespace stasis::cli {
namespace {

using v1::OperationResult;
using v1::PhaseReport;

std::string Headline(const OperationResult& result) {
  std::string line = fmt::format("{} {}", result.verb(), result.target());
  if (!result.job().empty() && result.job() != result.target())
    line += fmt::format(", job {}", result.job());
  if (result.pid() != 0) line += fmt::format(", process {}", result.pid());
  if (!result.image().empty()) line += fmt::format(", image {}", result.image());
  return line;
}

// Limits the indentation of a line, because the result may come from a daemon of another version.
constexpr size_t kDeepestPhase = 8;

double BytesPerSecond(const PhaseReport& phase) {
  return phase.seconds() > 0 ? static_cast<double>(phase.bytes()) / phase.seconds() : 0;
}

std::string PhaseLine(const PhaseReport& phase) {
  std::string name =
      std::string(std::min<size_t>(phase.depth(), kDeepestPhase) * 2, ' ') + phase.name();
  std::string line = fmt::format("  {:<20} {:>10}", name, FormatSeconds(phase.seconds()));
  if (phase.bytes() > 0) {
    line += fmt::format(" {:>12} {:>10}/s", FormatBytes(phase.bytes()),
                        FormatBytes(static_cast<uint64_t>(BytesPerSecond(phase))));
  }
  if (phase.parallel()) line += "  (in parallel)";
  return line;
}

struct Kind {
  uint64_t bytes;
  const char* what;
};
// Formats " 3 MiB zero, 5 MiB ..."; omits kinds with 0 bytes.
std::string BytesOfKinds(std::initializer_list<Kind> kinds) {
  std::string text;
  for (const Kind& kind : kinds) {
    if (kind.bytes == 0) continue;
    text += fmt::format("{} {} {}", text.empty() ? "" : ",", FormatBytes(kind.bytes), kind.what);
  }
  return text;
}

std::string CarriedText(const OperationResult& result) {
  const uint64_t driver =
      result.device_bytes() - std::min(result.device_bytes(), result.shared_bytes());
  std::string text;
  if (result.shared_bytes() > 0) {
    text +=
        fmt::format("  data plane carried {} (shared path)\n", FormatBytes(result.shared_bytes()));
    std::string rest = BytesOfKinds({{result.unchanged_bytes(), "unchanged since the last copy"},
                                     {result.zero_bytes(), "zero"}});
    if (!rest.empty()) {
      text += fmt::format("  copied {};{}\n", FormatBytes(result.copied_bytes()), rest);
    }
  }
  if (result.keep_context()) {
    text += fmt::format("  {} stays on the GPU: its context", FormatBytes(driver));
    if (result.staying_bytes() > 0) {
      text += fmt::format(", and {} of its memory that only the driver could save",
                          FormatBytes(result.staying_bytes()));
    }
    text += '\n';
  } else if (driver > 0) {
    text += fmt::format("  driver carried {}{}\n", FormatBytes(driver),
                        result.shared_bytes() > 0 ? ": contexts, modules and other state of its own"
                                                  : " (opaque path)");
  }
  for (const auto& why : result.left_to_driver())
    text += fmt::format("  left to the driver: {}\n", why);
  return text;
}

std::string WrittenText(const char* what, const v1::StoredPart& part) {
  if (part.raw() == 0) return "";
  std::string text = fmt::format("{} {}", what, FormatBytes(part.written()));
  if (part.written() < part.raw()) {
    text += fmt::format(" (compressed from {})", FormatBytes(part.raw()));
  }
  return text;
}

std::string NotWrittenText(const char* what, const v1::StoredPart& part) {
  const std::string kept = BytesOfKinds({{part.shared(), "already in earlier images"},
                                         {part.repeated(), "repeated within this image"},
                                         {part.zero(), "zero"}});
  return kept.empty() ? "" : fmt::format("  {} not written:{}\n", what, kept);
}

std::string StoredText(const OperationResult& result) {
  if (result.added_bytes() == 0) return "";
  std::string text = fmt::format("  written {}", FormatBytes(result.added_bytes()));
  const std::string gpu = WrittenText("GPU memory", result.stored_gpu());
  const std::string cpu = WrittenText("CPU memory", result.stored_cpu());
  if (!gpu.empty()) text += ": " + gpu;
  if (!cpu.empty()) text += (gpu.empty() ? ": " : " and ") + cpu;
  text += '\n';
  return text + NotWrittenText("GPU memory", result.stored_gpu()) +
         NotWrittenText("CPU memory", result.stored_cpu());
}

// Formats the rounds of a migration, and the restore on the other host.
std::string MigrationText(const OperationResult& result) {
  const v1::Migration& m = result.migration();
  std::string text =
      fmt::format("  runs on {}{}\n", m.host(), m.via().empty() ? "" : ", sent through " + m.via());
  for (int i = 0; i < m.rounds_size(); ++i) {
    const v1::MigrationRound& round = m.rounds(i);
    const bool last = i + 1 == m.rounds_size();
    text += fmt::format("  round {}: {} sent in {}, {} were there already{}\n", i + 1,
                        FormatBytes(round.sent_bytes()), FormatSeconds(round.send_s()),
                        FormatBytes(round.known_bytes()),
                        last ? ", while the program was stopped"
                             : "; GPU memory loaded in " + FormatSeconds(round.load_s()));
  }
  text += fmt::format("  restored on {}:\n", m.host());
  for (const PhaseReport& phase : m.restore_phases()) text += "  " + PhaseLine(phase) + "\n";
  return text;
}

}  // namespace

std::string AccountText(const OperationResult& result) {
  std::string text;
  if (!result.planned_phases().empty() && result.phases().empty()) {
    text = "Would run these phases:\n";
    for (const auto& phase : result.planned_phases()) text += "  " + phase + "\n";
    return text;
  }
  if (!result.verb().empty()) text += Headline(result) + "\n";
  for (const PhaseReport& phase : result.phases()) text += PhaseLine(phase) + "\n";
  if (!result.phases().empty()) {
    text += fmt::format("  {:<20} {:>10}", "total", FormatSeconds(result.total_s()));
    if (result.image_bytes() > 0)
      text += fmt::format(" {:>12} in the image", FormatBytes(result.image_bytes()));
    text += '\n';
    if (result.pause_s() > 0) {
      text += fmt::format("  {:<20} {:>10}  the program was stopped\n", "pause",
                          FormatSeconds(result.pause_s()));
    }
    text += StoredText(result);
  }
  if (result.device_bytes() > 0 && !result.phases().empty()) text += CarriedText(result);
  if (result.has_migration()) text += MigrationText(result);
  if (result.has_transfer()) {
    const v1::Transfer& t = result.transfer();
    const bool is_dump = result.verb() == "dump";
    text += fmt::format("  {} {}/{}: {} {}, {} {}\n", is_dump ? "pushed to" : "restored from",
                        t.repository(), t.name(), FormatBytes(t.moved_bytes()),
                        is_dump ? "sent" : "received", FormatBytes(t.known_bytes()),
                        is_dump ? "were in the repository" : "were on this machine");
  }
  if (!abi::IsHardware(result.driver()) && !result.phases().empty()) {
    text += "  run on the software GPU: the times say nothing about a real GPU\n";
  }
  for (const auto& note : result.notes()) text += fmt::format("{}: {}\n", result.target(), note);
  return text;
}

}  // namespace stasis::cli
