#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <memory>

#include "cli/gpu_usage.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "jobs/store.h"

namespace stasis::cli {
namespace {

int64_t NowMs() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

// "42s", "7m", "3h", "5d".
std::string FormatAge(int64_t since_ms, int64_t now_ms) {
  int64_t s = std::max<int64_t>(0, now_ms - since_ms) / 1000;
  if (s < 120) return fmt::format("{}s", s);
  if (s < 120 * 60) return fmt::format("{}m", s / 60);
  if (s < 48 * 3600) return fmt::format("{}h", s / 3600);
  return fmt::format("{}d", s / 86400);
}

std::string StateText(const jobs::Job& job, const GpuUsage& gpu) {
  if (gpu.suspended) return "suspended";
  if (job.state == jobs::State::kExited && job.ending) {
    return fmt::format("exited {}", job.ending->code);
  }
  if (job.state == jobs::State::kRunning && !job.has_shim) return "running, no shim";
  return std::string(jobs::StateName(job.state));
}

std::string GpuText(const GpuUsage& gpu) {
  if (!gpu.uses_gpu) return "-";
  if (!gpu.suspended) return FormatBytes(gpu.gpu_bytes);
  return gpu.suspended_bytes == 0 ? "0 B" : FormatBytes(gpu.suspended_bytes) + " in RAM";
}

std::string CheckpointText(const jobs::Job& job, int64_t now_ms) {
  if (job.checkpoints.empty()) return "-";
  const jobs::Checkpoint& last = job.checkpoints.back();
  return fmt::format("{} ago, {}", FormatAge(last.time_ms, now_ms), FormatBytes(last.bytes));
}

nlohmann::json ToJson(const jobs::Job& job, const GpuUsage& gpu) {
  nlohmann::json document = {{"id", job.id},
                             {"state", gpu.suspended ? "suspended" : jobs::StateName(job.state)},
                             {"pid", nullptr},
                             {"shim", job.has_shim},
                             {"command", job.argv},
                             {"directory", job.cwd},
                             {"log", job.log},
                             {"agent", !job.agent.empty()},
                             {"created_ms", job.created_ms},
                             {"gpu_bytes", gpu.gpu_bytes},
                             {"suspended_bytes", gpu.suspended_bytes},
                             {"checkpoint", nullptr}};
  if (job.state == jobs::State::kRunning && job.processes) {
    document["pid"] = job.processes->root.pid.value;
  }
  if (job.ending) {
    document["code"] = job.ending->code;
    document["signal"] = job.ending->signal;
    document["ended_ms"] = job.ending->time_ms;
  }
  if (!job.checkpoints.empty()) {
    const jobs::Checkpoint& last = job.checkpoints.back();
    document["checkpoint"] = {{"image", last.image},
                              {"name", last.name},
                              {"time_ms", last.time_ms},
                              {"bytes", last.bytes},
                              {"seconds", last.seconds}};
  }
  return document;
}

Outcome Ps(const Globals& globals, bool all) {
  STASIS_ASSIGN(Paths paths, OpenPaths());
  STASIS_ASSIGN(auto listed, jobs::Store(paths.jobs()).List());
  std::vector<jobs::Job> shown;
  auto damaged = nlohmann::json::array();
  for (auto& entry : listed) {
    if (!entry.job) {
      damaged.push_back({{"id", entry.id}, {"error", entry.job.error().ToString()}});
      PrintStderr(fmt::format("stasis: {}\n", entry.job.error().ToString()));
    } else if (all || !jobs::HasEnded(entry.job->state)) {
      shown.push_back(std::move(*entry.job));
    }
  }
  GpuUsages gpus = LookAtGpus(paths, shown);
  if (!gpus.problem.empty()) {
    PrintStderr(fmt::format("stasis: what the GPUs hold is not known: {}\n", gpus.problem));
  }

  int64_t now_ms = NowMs();
  auto documents = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "STATE", "PID", "GPU", "AGE", "CHECKPOINT"}};
  for (const jobs::Job& job : shown) {
    const GpuUsage& gpu = gpus.by_job[job.id];
    bool runs = job.state == jobs::State::kRunning && job.processes;
    documents.push_back(ToJson(job, gpu));
    rows.push_back({job.id, StateText(job, gpu),
                    runs ? process::ToString(job.processes->root.pid) : "-", GpuText(gpu),
                    FormatAge(job.created_ms, now_ms), CheckpointText(job, now_ms)});
  }
  PrintResult(globals, FormatTable(rows), {{"jobs", documents}, {"damaged", damaged}});
  return 0;
}

}  // namespace

void RegisterPs(CLI::App& app, const std::function<void(Action)>& select) {
  auto all = std::make_shared<bool>(false);
  auto* verb = app.add_subcommand("ps", "List jobs");
  verb->add_flag("-a,--all", *all, "Those too that have ended");
  verb->callback([=] { select([=](const Globals& globals) { return Ps(globals, *all); }); });
}

}  // namespace stasis::cli
