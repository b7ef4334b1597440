#include <fmt/format.h>

#include <memory>

#include "api/methods.h"
#include "api/ready_arenas.h"
#include "base/size.h"
#include "cli/message_json.h"
#include "cli/operation.h"
#include "cli/table.h"

namespace stasis::cli {
namespace {

std::string ListText(const v1::ListArenasResponse& response) {
  if (response.arenas().empty()) {
    std::string places;
    for (const auto& place : response.places()) {
      places += (places.empty() ? "" : ", ") + place.path();
    }
    return "no memory is kept for GPU data in " + places + "\n";
  }
  std::vector<std::vector<std::string>> rows = {{"SIZE", "STATE", "PID", "GPU", "DATA", "FILE"}};
  for (const auto& arena : response.arenas()) {
    rows.push_back({FormatBytes(arena.size_bytes()),
                    arena.state() + (arena.context_kept() ? ", context kept" : ""),
                    arena.has_pid() ? std::to_string(arena.pid()) : "-",
                    arena.has_gpu() ? arena.gpu() : "-",
                    arena.has_pid() ? FormatBytes(arena.data_bytes()) : "-", arena.path()});
  }
  return FormatTable(rows);
}

Outcome ListArenas(const Globals& globals) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::ListArenas(call, {}));
  for (const auto& arena : response.arenas()) {
    if (arena.damage().empty()) continue;
    PrintStderr(fmt::format("stasis: {}: {}\n", arena.path(), arena.damage()));
  }
  PrintResult(globals, ListText(response), MessageJson(response));
  return 0;
}

Outcome Reserve(const Globals& globals, const std::string& size) {
  v1::ReserveArenaRequest request;
  STASIS_ASSIGN(const uint64_t bytes, ParseSize(size));
  request.set_bytes(bytes);
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::ReserveArena(call, request));
  PrintResult(globals,
              fmt::format("{} are ready in {} ({})\n", FormatBytes(bytes), response.place(),
                          FormatSeconds(response.seconds())),
              MessageJson(response));
  return 0;
}

Outcome KeepReady(const Globals& globals, const std::string& job, bool wait) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_TRY(api::KeepReady(call, job, wait));
  PrintResult(globals, "", {{"job", job}});
  return 0;
}

Outcome Free(const Globals& globals, bool keep_of_running) {
  v1::FreeArenasRequest request;
  request.set_keep_of_running(keep_of_running);
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::FreeArenas(call, request));
  std::string text = FormatBytes(response.freed_bytes()) + " freed";
  if (const uint32_t movers = response.movers_ended(); movers > 0) {
    text += fmt::format(", {} idle mover{} ended", movers, movers == 1 ? "" : "s");
  }
  PrintResult(globals, text, MessageJson(response));
  return 0;
}

}  // namespace

void RegisterArena(App app, const std::function<void(Action)>& select) {
  auto size = std::make_shared<std::string>();
  auto verb = app.add_subcommand("arena", "Manage the host memory that is kept for GPU data");
  verb->require_subcommand(1);
  verb->add_subcommand("ls",
                       "List the host memory for GPU data, and the processes whose data it holds")
      ->callback([=] { select(ListArenas); });
  auto reserve = verb->add_subcommand(
      "reserve", "Allocate and touch memory now, so that the next suspend is faster");
  reserve->add_option("SIZE", *size, "32GiB, 512M, ...")->required();
  reserve->callback(
      [=] { select([=](const Globals& globals) { return Reserve(globals, *size); }); });
  auto ready_job = std::make_shared<std::string>();
  auto wait = std::make_shared<bool>(false);
  auto ready = verb->add_subcommand(
      "ready", "Keep host memory ready for the next suspend of a job, until the job ends");
  ready->add_option("JOB", *ready_job, "Name of the job")->required();
  ready->add_flag("--wait", *wait,
                  "Also wait while there is no such job, or while it does not run");
  ready->callback([=] {
    select([=](const Globals& globals) { return KeepReady(globals, *ready_job, *wait); });
  });
  auto keep_of_running = std::make_shared<bool>(false);
  auto free = verb->add_subcommand(
      "free", "Free memory that has no data of a suspended program, and stop idle movers");
  free->add_flag("--keep-of-running", *keep_of_running,
                 "Keep the memory for the next suspends of running programs");
  free->callback(
      [=] { select([=](const Globals& globals) { return Free(globals, *keep_of_running); }); });
}

}  // namespace stasis::cli
