// stasis share: the programs that share GPUs.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "cli/message_json.h"
#include "cli/share.h"
#include "cli/table.h"

namespace stasis::cli {
namespace {

// Clears the terminal and moves to its first line.
constexpr char kClear[] = "\x1b[H\x1b[2J";

std::string GpuNames(const v1::Share& share) {
  std::string names;
  for (const auto& gpu : share.gpus()) {
    names += (names.empty() ? "" : ",") + gpu.uuid().substr(0, 12);
  }
  return names.empty() ? "-" : names;
}

std::string SizeText(const v1::Share& share) {
  uint64_t data = 0, contexts = 0;
  for (const auto& gpu : share.gpus()) {
    data += gpu.data_bytes();
    contexts += gpu.context_bytes();
  }
  if (data + contexts == 0) return "-";
  return FormatBytes(data) + " + " + FormatBytes(contexts);
}

std::string ShareStateText(const v1::Share& share) {
  std::string text = share.state();
  if (share.pinned()) text += ", pinned";
  if (share.by_hand()) text += ", by hand";
  return text;
}

std::string WaitText(const v1::Share& share) {
  if (!share.has_waits_s()) return "-";
  std::string text = FormatSeconds(share.waits_s());
  if (share.asked_bytes() > 0) text += " for " + FormatBytes(share.asked_bytes());
  return text;
}

std::string ListText(const v1::ListSharesResponse& response, bool users) {
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "CLASS", "STATE", "WAITS", "GPU", "DATA + CONTEXTS", "SWAPS", "LOST"}};
  if (users) rows[0].insert(rows[0].begin(), "USER");
  std::string notes;
  for (const v1::Share& share : response.shares()) {
    rows.push_back({share.job(), share.class_(), ShareStateText(share), WaitText(share),
                    GpuNames(share), SizeText(share), std::to_string(share.swaps()),
                    FormatSeconds(share.lost_s())});
    if (users) rows.back().insert(rows.back().begin(), std::to_string(share.uid()));
    for (const std::string* why : {&share.obstacle(), &share.problem()}) {
      if (!why->empty()) notes += fmt::format("{}: {}\n", share.job(), *why);
    }
  }
  return FormatTable(rows) + notes;
}

bool AnyOtherUser(const v1::ListSharesResponse& response) {
  for (const v1::Share& share : response.shares()) {
    if (share.uid() != ::getuid()) return true;
  }
  return false;
}

// With --json, prints one document a line with each change.
Outcome List(const Globals& globals, bool watch) {
  STASIS_ASSIGN(auto client, OpenShareClient(globals));
  uint64_t version = 0;
  for (;;) {
    STASIS_ASSIGN(const v1::ListSharesResponse response, client.ListShares(version));
    std::string text = ListText(response, AnyOtherUser(response));
    if (watch && ::isatty(STDOUT_FILENO) != 0) text = kClear + text;
    auto shares = nlohmann::json::array();
    for (const v1::Share& share : response.shares()) shares.push_back(MessageJson(share));
    PrintResult(globals, text, {{"shares", shares}});
    if (!watch) return 0;
    STASIS_TRY(FinishOutput());
    version = response.version();
  }
}

Outcome Pin(const Globals& globals, const std::string& job, bool pinned) {
  STASIS_ASSIGN(auto client, OpenShareClient(globals));
  STASIS_TRY(Annotate(client.PinShare(job, pinned),
                      fmt::format("cannot {} {}", pinned ? "pin" : "unpin", job)));
  PrintResult(globals, "", {{"job", job}, {"pinned", pinned}});
  return 0;
}

}  // namespace

void RegisterShare(App app, const std::function<void(Action)>& select) {
  struct Options {
    bool watch = false;
    std::string job;
    bool changes = false;  // a subcommand was given
  };
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand("share", "List the programs that share GPUs, or pin one");
  verb->add_flag("--watch", options->watch, "Print the list again whenever it changes");
  for (const bool pinned : {true, false}) {
    auto change = verb->add_subcommand(
        pinned ? "pin" : "unpin", pinned ? "Keep a program on its GPUs" : "Let it leave again");
    change->add_option("JOB", options->job, "Name of the job")->required();
    change->callback([=] {
      options->changes = true;
      select([=](const Globals& globals) { return Pin(globals, options->job, pinned); });
    });
  }
  // Also called after the callback of a subcommand.
  verb->callback([=] {
    if (options->changes) return;
    select([=](const Globals& globals) { return List(globals, options->watch); });
  });
}

}  // namespace stasis::cli
