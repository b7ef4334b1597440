#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "cli/job_view.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

std::string When(int64_t time_ms) {
  return fmt::format("{} ({} ago)", FormatTime(time_ms), FormatAge(time_ms, NowMs()));
}

bool IsControl(unsigned char c) { return c < ' ' || c == 127; }

// Quotes for bash on one line: 'text', or $'text\n' if there are control characters.
std::string Quoted(const std::string& argument) {
  const bool plain =
      !argument.empty() && argument.find_first_not_of(
                               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "%+,-./:=@_") == std::string::npos;
  if (plain) return argument;
  std::string line = "'";
  if (std::none_of(argument.begin(), argument.end(), IsControl)) {
    for (char c : argument) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return line + "'";
  }
  line = "$'";
  for (char c : argument) {
    if (IsControl(static_cast<unsigned char>(c))) {
      line += c == '\n'   ? "\\n"
              : c == '\t' ? "\\t"
                          : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      if (c == '\'' || c == '\\') line += '\\';
      line += c;
    }
  }
  return line + "'";
}

std::string Quoted(const google::protobuf::RepeatedPtrField<std::string>& argv) {
  std::string line;
  for (const std::string& argument : argv) line += (line.empty() ? "" : " ") + Quoted(argument);
  return line;
}

std::string CheckpointsText(const v1::Job& job) {
  if (!job.has_checkpoint()) return "none";
  const v1::Checkpoint& last = job.checkpoint();
  return fmt::format("{} image{}; the last: {}, {}, {}", job.images(), job.images() == 1 ? "" : "s",
                     When(last.time_ms()), FormatBytes(last.bytes()), last.image());
}

std::string Text(const v1::Job& job) {
  std::string text;
  auto line = [&](std::string_view what, const std::string& value) {
    // Paths may contain control characters too.
    const bool one_line = std::none_of(value.begin(), value.end(), IsControl);
    text += fmt::format("{:<12} {}\n", what, one_line ? value : Quoted(value));
  };
  line("job", job.id());
  line("state", StateText(job));
  line("command", Quoted(job.command()));
  line("directory", job.directory());
  line("started by", fmt::format("user {}, group {}", job.uid(), job.gid()));
  line("log", job.log().empty() ? "none: the output goes where it went before" : job.log());
  line("agent", job.agent_library().empty() ? "none" : job.agent_library());
  if (!job.share().empty()) line("shares GPUs", job.share());
  if (job.has_root()) {
    line("process", fmt::format("{}{}", job.root().pid(), job.has_pid() ? "" : " (ended)"));
    line("shim", job.has_shim_process()
                     ? fmt::format("{}{}", job.shim_process().pid(), job.shim() ? "" : " (ended)")
                     : "none: the program was adopted while it ran");
  }
  if (job.has_pid()) line("GPU", GpuText(job));
  line("created", When(job.created_ms()));
  if (job.has_code()) {
    const bool by_signal = job.signal() != 0 && !job.ended_by_dump();
    line("ended",
         When(job.ended_ms()) + (by_signal ? fmt::format(", by signal {}", job.signal()) : ""));
  }
  if (!job.dumped_image().empty()) line("dumped to", job.dumped_image());
  line("checkpoints", CheckpointsText(job));
  return text;
}

nlohmann::json Document(const v1::Job& job) {
  nlohmann::json document = ToJson(job);
  document["agent_library"] = nullptr;
  if (!job.agent_library().empty()) document["agent_library"] = job.agent_library();
  document["images"] = job.images();
  document["processes"] = nullptr;
  if (job.has_root()) {
    auto process = [](const v1::Process& id) {
      return nlohmann::json{{"pid", id.pid()}, {"start_time", id.start_ticks()}};
    };
    document["processes"] = {
        {"root", process(job.root())}, {"shim", nullptr}, {"boot_id", job.boot_id()}};
    if (job.has_shim_process()) document["processes"]["shim"] = process(job.shim_process());
  }
  return document;
}

Outcome Inspect(const Globals& globals, const std::string& id) {
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(const v1::Job job, client.GetJob(id));
  ReportProblem(job.problem());
  PrintResult(globals, Text(job), Document(job));
  return 0;
}

}  // namespace

void RegisterInspect(App app, const std::function<void(Action)>& select) {
  auto id = std::make_shared<std::string>();
  auto verb = app.add_subcommand("inspect", "Show everything that is known about a job");
  verb->add_option("JOB", *id, "The job")->required();
  verb->callback([=] { select([=](const Globals& globals) { return Inspect(globals, *id); }); });
}

}  // namespace stasis::cli
