#include "api/worker_log.h"

#include <fcntl.h>

#include "base/log.h"

namespace stasis::api {

using log::Level;

void WorkerLog::Open(const v1::WorkerRequest& request, const std::string& verb,
                     const std::string& target) {
  // Helpers must not inherit the descriptor, because their user could make them write to the log.
  if (::fcntl(kLogFd, F_SETFD, FD_CLOEXEC) != 0) return;
  log::Options options;
  options.program = "stasis-worker";
  options.level = log::LevelNamed(request.log_level());
  options.fd = kLogFd;
  if (!log::Open(options)) return;
  log::SetFields({{"operation", request.operation()},
                  {"verb", verb},
                  {"target", target},
                  {"uid", uint64_t{request.caller()}}});
}

void WorkerLog::LogBegin() const { log::Write(operation_ ? Level::kInfo : Level::kDebug, "begun"); }

void WorkerLog::LogEvent(const v1::OperationEvent& event) const {
  if (event.has_phase_begun()) {
    log::Write(Level::kDebug, "phase begun", {{"phase", event.phase_begun().name()}});
  } else if (event.has_phase_ended()) {
    const auto& phase = event.phase_ended();
    log::Write(Level::kInfo, "phase ended",
               {{"phase", phase.name()}, {"seconds", phase.seconds()}, {"bytes", phase.bytes()}});
  }
}

void WorkerLog::LogEnd(const Result<std::string>& reply) const {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  if (!reply) {
    const Error& error = reply.error();
    log::Fields fields = {{"outcome", std::string(error.not_undone ? "not undone" : "failed")},
                          {"seconds", seconds}};
    for (auto& field : log::ErrorFields(error)) fields.push_back(std::move(field));
    const Level level = error.not_undone ? Level::kError : Level::kWarn;
    log::Write(operation_ ? level : Level::kInfo, "ended", fields);
    return;
  }
  log::Fields fields = {{"outcome", std::string("done")}, {"seconds", seconds}};
  v1::OperationEvent last;
  if (operation_ && last.ParseFromString(*reply) && last.has_result()) {
    const auto& result = last.result();
    for (const auto& note : result.notes()) log::Write(Level::kWarn, note);
    for (const auto& why : result.left_to_driver()) log::Write(Level::kInfo, why);
    fields.emplace_back("bytes", result.device_bytes());
    if (!result.job().empty()) fields.emplace_back("job", result.job());
    if (result.pid() != 0) fields.emplace_back("target_pid", int64_t{result.pid()});
    if (!result.image().empty()) fields.emplace_back("image", result.image());
    if (result.image_bytes() != 0) fields.emplace_back("image_bytes", result.image_bytes());
  }
  log::Write(operation_ ? Level::kInfo : Level::kDebug, "ended", fields);
}

}  // namespace stasis::api
