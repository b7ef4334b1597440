#include <fmt/format.h>

#include <memory>

#include "base/clock.h"
#include "cli/job_view.h"
#include "cli/message_json.h"
#include "cli/operation.h"
#include "cli/table.h"

namespace stasis::cli {
namespace {

std::string CheckpointText(const v1::Job& job, int64_t now_ms) {
  if (!job.has_checkpoint()) return "-";
  const v1::Checkpoint& last = job.checkpoint();
  return fmt::format("{} ago, {}", FormatAge(last.time_ms(), now_ms), FormatBytes(last.bytes()));
}

Outcome Ps(const Globals& globals, bool all) {
  v1::ListJobsRequest request;
  request.set_all(all);
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(const v1::ListJobsResponse response, client.ListJobs(request));
  auto damaged = nlohmann::json::array();
  for (const auto& entry : response.damaged()) {
    damaged.push_back({{"id", entry.id()}, {"error", entry.error()}});
    PrintStderr(fmt::format("stasis: {}\n", entry.error()));
  }
  ReportProblem(response.problem());

  int64_t now_ms = NowMs();
  auto documents = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "STATE", "PID", "GPU", "AGE", "CHECKPOINT"}};
  for (const v1::Job& job : response.jobs()) {
    documents.push_back(ToJson(job));
    rows.push_back({job.id(), StateText(job), PidText(job), GpuText(job),
                    FormatAge(job.created_ms(), now_ms), CheckpointText(job, now_ms)});
  }
  PrintResult(globals, FormatTable(rows), {{"jobs", documents}, {"damaged", damaged}});
  return 0;
}

std::string GpuText(const v1::ListContainersResponse::Container& container) {
  if (!container.uses_gpu()) return "-";
  if (container.suspended_bytes() == 0) return FormatBytes(container.gpu_bytes());
  std::string text = FormatBytes(container.suspended_bytes()) + " in RAM";
  if (container.context_kept()) text += ", context kept";
  return text;
}

Outcome PsContainers(const Globals& globals, const PlaceFlags& places, bool all) {
  v1::ListContainersRequest request;
  *request.mutable_places() = places.ToMessage();
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(v1::ListContainersResponse response, client.ListContainers(request));
  for (const std::string& problem : response.problems()) {
    PrintStderr(fmt::format("stasis: {}\n", problem));
  }
  auto shown = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows = {{"CONTAINER", "STATE", "PID", "PROCESSES", "GPU"}};
  for (const auto& container : response.containers()) {
    if (!all && !container.has_pid()) continue;
    shown.push_back(MessageJson(container));
    rows.push_back({container.target(), container.state(),
                    container.has_pid() ? std::to_string(container.pid()) : "-",
                    container.has_pid() ? std::to_string(container.processes()) : "-",
                    GpuText(container)});
  }
  auto problems = nlohmann::json::array();
  for (const std::string& problem : response.problems()) problems.push_back(problem);
  PrintResult(globals, FormatTable(rows), {{"containers", shown}, {"problems", problems}});
  return 0;
}

}  // namespace

void RegisterPs(App app, const std::function<void(Action)>& select) {
  struct Options {
    bool all = false;
    bool containers = false;
    PlaceFlags places;
  };
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand("ps", "List jobs, or containers");
  verb->add_flag("-a,--all", options->all, "Include jobs or containers that have ended");
  verb->add_flag("--containers", options->containers,
                 "List the containers of podman, containerd and runc, with their GPU memory");
  options->places.AddTo(verb);
  verb->callback([=] {
    select([=](const Globals& globals) {
      return options->containers ? PsContainers(globals, options->places, options->all)
                                 : Ps(globals, options->all);
    });
  });
}

}  // namespace stasis::cli
