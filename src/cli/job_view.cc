#include "cli/job_view.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "cli/message_json.h"
#include "cli/verb.h"

namespace stasis::cli {
std::string FormatAge(int64_t since_ms, int64_t now_ms) {
  int64_t s = std::max<int64_t>(0, now_ms - since_ms) / 1000;
  if (s < 120) return fmt::format("{}s", s);
  if (s < int64_t{120} * 60) return fmt::format("{}m", s / 60);
  if (s < int64_t{48} * 3600) return fmt::format("{}h", s / 3600);
  return fmt::format("{}d", s / 86400);
}

std::string FormatTime(int64_t time_ms) {
  const time_t seconds = static_cast<time_t>(time_ms / 1000);
  tm parts{};
  char text[32];
  if (::localtime_r(&seconds, &parts) == nullptr) return "?";
  return std::string(text, ::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts));
}

std::string StateText(const v1::Job& job) {
  if (job.context_kept() && !job.failed()) return "suspended, context kept";
  if (!job.moved_to().empty()) return "moved to " + job.moved_to();
  if (!job.perhaps_moved_to().empty()) return "perhaps moved to " + job.perhaps_moved_to();
  if (!job.node().empty()) return "on " + job.node();
  if (job.state() == "exited" && job.has_code()) return fmt::format("exited {}", job.code());
  return job.state() == "running" && !job.shim() ? "running, no shim" : job.state();
}

std::string GpuText(const v1::Job& job) {
  if (!job.uses_gpu()) return "-";
  if (!job.suspended()) return FormatBytes(job.gpu_bytes());
  const uint64_t on_disk = job.spilled_bytes(), in_memory = job.suspended_bytes() - on_disk;
  std::string away;
  if (in_memory != 0) away = FormatBytes(in_memory) + " in RAM";
  if (on_disk != 0) away += (away.empty() ? "" : ", ") + FormatBytes(on_disk) + " on disk";
  if (away.empty()) away = "0 B";
  return job.context_kept() ? FormatBytes(job.gpu_bytes()) + ", " + away : away;
}

std::string PidText(const v1::Job& job) { return job.has_pid() ? std::to_string(job.pid()) : "-"; }

nlohmann::json ToJson(const v1::Checkpoint& checkpoint) {
  nlohmann::json document = MessageJson(checkpoint);
  if (checkpoint.image().empty()) document["image"] = nullptr;
  if (checkpoint.copy().empty()) document["copy"] = nullptr;
  document.erase("exists");
  document.erase("account");
  return document;
}

nlohmann::json ToJson(const v1::Job& job) {
  nlohmann::json document = MessageJson(job);
  for (const char* other :
       {"agent_library", "uses_gpu", "images", "dumped_image", "root", "shim_process", "boot_id",
        "suspended", "failed", "ended_by_dump", "problem"}) {
    document.erase(other);
  }
  if (job.log().empty()) document["log"] = nullptr;
  if (job.moved_to().empty()) document["moved_to"] = nullptr;
  if (job.perhaps_moved_to().empty()) document["perhaps_moved_to"] = nullptr;
  if (job.share().empty()) document["share"] = nullptr;
  if (job.node().empty()) document["node"] = nullptr;
  document["agent"] = !job.agent_library().empty();
  if (!job.has_code()) {
    for (const char* of_end : {"code", "signal", "ended_ms"}) document.erase(of_end);
  }
  if (job.has_checkpoint()) document["checkpoint"] = ToJson(job.checkpoint());
  return document;
}

void ReportProblem(const std::string& problem) {
  if (problem.empty()) return;
  PrintStderr(fmt::format("stasis: GPU memory is unknown: {}\n", problem));
}

}  // namespace stasis::cli
