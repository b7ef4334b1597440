#include <fmt/format.h>

#include <memory>

#include "base/clock.h"
#include "cli/job_view.h"
#include "cli/operation.h"
#include "cli/table.h"

namespace stasis::cli {
namespace {

std::string ImageText(const v1::Checkpoint& checkpoint) {
  if (checkpoint.image().empty()) return "-";
  if (checkpoint.copy().empty()) {
    return checkpoint.image() + (checkpoint.exists() ? "" : " (gone)");
  }
  return (checkpoint.exists() ? checkpoint.image() + ", " : "") + checkpoint.copy();
}

Outcome Checkpoints(const Globals& globals, const std::string& id) {
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(const v1::ListCheckpointsResponse response, client.ListCheckpoints(id));
  std::vector<std::vector<std::string>> rows = {
      {"AGO", "KIND", "SIZE", "WRITTEN", "TIME", "IMAGE"}};
  auto documents = nlohmann::json::array();
  for (const v1::Checkpoint& checkpoint : response.checkpoints()) {
    rows.push_back({FormatAge(checkpoint.time_ms(), NowMs()), checkpoint.kind(),
                    FormatBytes(checkpoint.bytes()),
                    checkpoint.has_written_bytes() ? FormatBytes(checkpoint.written_bytes()) : "-",
                    FormatSeconds(checkpoint.seconds()), ImageText(checkpoint)});
    nlohmann::json document = ToJson(checkpoint);
    document["exists"] = checkpoint.exists();
    document["account"] = checkpoint.account().empty()
                              ? nlohmann::json()
                              : nlohmann::json::parse(checkpoint.account(), nullptr,
                                                      /*allow_exceptions=*/false);
    if (document["account"].is_discarded()) document["account"] = nullptr;
    documents.push_back(std::move(document));
  }
  std::string text = FormatTable(rows);
  nlohmann::json moved_to, perhaps_moved_to;
  if (!response.moved_to().empty()) {
    moved_to = response.moved_to();
    text += "moved to " + response.moved_to() + "\n";
  }
  if (!response.perhaps_moved_to().empty()) {
    perhaps_moved_to = response.perhaps_moved_to();
    text += "perhaps moved to " + response.perhaps_moved_to() + "\n";
  }
  PrintResult(globals, text,
              {{"id", id},
               {"moved_to", moved_to},
               {"perhaps_moved_to", perhaps_moved_to},
               {"checkpoints", documents}});
  return 0;
}

}  // namespace

void RegisterCheckpoints(App app, const std::function<void(Action)>& select) {
  auto id = std::make_shared<std::string>();
  auto verb =
      app.add_subcommand("checkpoints", "List the dumps and suspends of a job, oldest first");
  verb->add_option("JOB", *id, "The job")->required();
  verb->callback(
      [=] { select([=](const Globals& globals) { return Checkpoints(globals, *id); }); });
}

}  // namespace stasis::cli
