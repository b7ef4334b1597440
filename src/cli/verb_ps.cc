#include <fmt/format.h>

#include <memory>

#include "base/clock.h"
#include "cli/job_view.h"
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

}  // namespace

void RegisterPs(App app, const std::function<void(Action)>& select) {
  auto all = std::make_shared<bool>(false);
  auto verb = app.add_subcommand("ps", "List jobs");
  verb->add_flag("-a,--all", *all, "Include jobs that have ended");
  verb->callback([=] { select([=](const Globals& globals) { return Ps(globals, *all); }); });
}

}  // namespace stasis::cli
