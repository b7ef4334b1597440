#include "daemon/measures.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

namespace stasis::daemon {
namespace {

using metrics::Family;
using metrics::Type;

constexpr double kSeconds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                               5,    10,    25,   50,  100,  250, 500, 1000};

// The place of each in kFamilies.
enum Figure : size_t {
  kBuildInfo,
  kStarted,
  kUptime,
  kDraining,
  kOperations,
  kUnderWay,
  kOperationSeconds,
  kPhaseSeconds,
  kPauseSeconds,
  kBytes,
  kCalls,
  kRefused,
  kLostWorkers,
  kLostLines,
  kJobs,
  kSuspendedProcesses,
  kSuspendedBytes,
  kSuspendedSeconds,
  kArenaBytes,
  kArenaRoom,
  kMovers,
  kUsageAge,
  kUsageFailures,
  kFigures
};

// docs/metrics.md has the same lines; a test compares it with what is served.
constexpr Family kFamilies[kFigures] = {
    {"stasis_build_info", Type::kGauge, "version", "Always 1", {}},
    {"stasis_start_time_seconds", Type::kGauge, "", "When the daemon began, since 1970", {}},
    {"stasis_uptime_seconds", Type::kGauge, "", "How long the daemon runs", {}},
    {"stasis_draining", Type::kGauge, "", "1: it begins nothing any more", {}},
    {"stasis_operations_total",
     Type::kCounter,
     "verb,outcome,code,domain",
     "Operations that have ended, and why those that failed did",
     {}},
    {"stasis_operations_under_way", Type::kGauge, "verb", "Operations that have not ended", {}},
    {"stasis_operation_seconds", Type::kHistogram, "verb,outcome",
     "How long operations took, from the call to its end", kSeconds},
    {"stasis_phase_seconds", Type::kHistogram, "verb,phase", "How long phases of operations took",
     kSeconds},
    {"stasis_pause_seconds", Type::kHistogram, "verb",
     "How long programs stood still that ran on after their dump", kSeconds},
    {"stasis_bytes_total",
     Type::kCounter,
     "verb,path",
     "Memory that operations which ended well have moved",
     {}},
    {"stasis_calls_total",
     Type::kCounter,
     "method,code",
     "Calls that were passed on to a worker and have ended",
     {}},
    {"stasis_calls_refused_total", Type::kCounter, "method,code", "Calls that were not begun", {}},
    {"stasis_workers_lost_total",
     Type::kCounter,
     "method",
     "Workers that ended without a word: were killed, or failed themselves",
     {}},
    {"stasis_log_lines_lost_total",
     Type::kCounter,
     "",
     "Lines that the daemon's log did not take at once",
     {}},
    {"stasis_jobs", Type::kGauge, "uid,state", "Jobs, by the state last recorded", {}},
    {"stasis_suspended_processes", Type::kGauge, "uid", "Processes whose GPU memory is away", {}},
    {"stasis_suspended_bytes", Type::kGauge, "uid", "GPU memory that they have given up", {}},
    {"stasis_suspended_oldest_seconds",
     Type::kGauge,
     "uid",
     "For how long the one is suspended that is so for longest; 0: none is",
     {}},
    {"stasis_arena_bytes", Type::kGauge, "uid,state", "Memory in arenas, as `arena ls` tells", {}},
    {"stasis_arena_room_bytes",
     Type::kGauge,
     "uid",
     "What could still be allocated where new arenas are made",
     {}},
    {"stasis_movers", Type::kGauge, "uid", "Movers that run, idle ones too", {}},
    {"stasis_usage_age_seconds",
     Type::kGauge,
     "uid",
     "How old the figures of this user's programs are",
     {}},
    {"stasis_usage_failures_total",
     Type::kCounter,
     "",
     "Times that a user's figures could not be had",
     {}},
};

const char* OutcomeOf(const Result<std::string>& reply) {
  if (reply) return "done";
  return reply.error().not_undone ? "not_undone" : "failed";
}

std::string CodeOf(const Result<std::string>& reply) {
  return std::string(CodeName(reply ? Code::kOk : reply.error().code));
}

// What says of itself that it is one; anybody's program may. By user.
std::map<uid_t, int> CountMovers() {
  std::map<uid_t, int> movers;
  for (const auto& name : ListDir("/proc").value_or(std::vector<std::string>())) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string folder = "/proc/" + name;
    struct stat st;
    auto comm = ReadFile(folder + "/comm", 64);
    if (comm && *comm == "stasis-mover\n" && ::stat(folder.c_str(), &st) == 0) ++movers[st.st_uid];
  }
  return movers;
}

double Real(uint64_t number) { return static_cast<double>(number); }

}  // namespace

Measures::Measures(int64_t started_ms) : registry_(kFamilies), started_ms_(started_ms) {
  registry_.Set(kBuildInfo, {STASIS_VERSION}, 1);
  registry_.Set(kStarted, {}, static_cast<double>(started_ms) / 1000);
  registry_.Add(kUsageFailures, {}, 0);
}

void Measures::Refused(const std::string& method, const Error& error) {
  registry_.Add(kRefused, {method, std::string(CodeName(error.code))}, 1);
}

void Measures::Ended(const std::string& method, const Result<std::string>& reply, bool lost) {
  registry_.Add(kCalls, {method, CodeOf(reply)}, 1);
  if (lost) registry_.Add(kLostWorkers, {method}, 1);
}

void Measures::PhaseEnded(const std::string& verb, const v1::PhaseReport& phase) {
  registry_.Observe(kPhaseSeconds, {verb, phase.name()}, phase.seconds());
}

void Measures::OperationEnded(const std::string& verb, double seconds,
                              const Result<std::string>& reply) {
  const std::string domain = reply ? "" : std::string(DomainName(reply.error().domain));
  registry_.Add(kOperations, {verb, OutcomeOf(reply), CodeOf(reply), domain}, 1);
  registry_.Observe(kOperationSeconds, {verb, OutcomeOf(reply)}, seconds);
  v1::OperationEvent last;
  // Only that of a stream is one; and of a dry run nothing was moved.
  if (!reply || !last.ParseFromString(*reply) || !last.has_result()) return;
  const auto& result = last.result();
  if (result.phases().empty()) return;
  const uint64_t shared = std::min(result.shared_bytes(), result.device_bytes());
  registry_.Add(kBytes, {verb, "data_plane"}, Real(shared));
  registry_.Add(kBytes, {verb, "driver"}, Real(result.device_bytes() - shared));
  if (verb == "dump") registry_.Add(kBytes, {verb, "written"}, Real(result.added_bytes()));
  if (verb == "restore") registry_.Add(kBytes, {verb, "read"}, Real(result.image_bytes()));
  if (result.pause_s() > 0) registry_.Observe(kPauseSeconds, {verb}, result.pause_s());
}

void Measures::SetUsages(const std::vector<UserUsage>& usages) {
  for (size_t figure : {kJobs, kSuspendedProcesses, kSuspendedBytes, kSuspendedSeconds, kArenaBytes,
                        kArenaRoom, kUsageAge}) {
    registry_.Clear(figure);
  }
  const double now_s = static_cast<double>(NowMs()) / 1000;
  // A user may have several folders.
  struct Sums {
    double processes = 0, bytes = 0, oldest_s = 0, age_s = 0;
    double room = -1;
    std::map<std::string, double> jobs, arenas;
  };
  std::map<uid_t, Sums> users;
  for (const auto& [uid, age_s, usage] : usages) {
    Sums& sums = users[uid];
    sums.processes += Real(usage.suspended_processes());
    sums.bytes += Real(usage.suspended_bytes());
    if (usage.suspended_since_unix_s() > 0) {
      const double since = static_cast<double>(usage.suspended_since_unix_s());
      sums.oldest_s = std::max({sums.oldest_s, now_s - since, 0.0});
    }
    sums.age_s = std::max(sums.age_s, age_s);
    const double room = Real(usage.arena_room_bytes());
    sums.room = sums.room < 0 ? room : std::min(sums.room, room);
    for (const auto& [state, count] : usage.jobs()) sums.jobs[state] += Real(count);
    for (const auto& [state, bytes] : usage.arena_bytes()) sums.arenas[state] += Real(bytes);
  }
  for (const auto& [uid, sums] : users) {
    const std::string user = std::to_string(uid);
    registry_.Set(kSuspendedProcesses, {user}, sums.processes);
    registry_.Set(kSuspendedBytes, {user}, sums.bytes);
    registry_.Set(kSuspendedSeconds, {user}, sums.oldest_s);
    registry_.Set(kArenaRoom, {user}, sums.room);
    registry_.Set(kUsageAge, {user}, sums.age_s);
    for (const auto& [state, count] : sums.jobs) registry_.Set(kJobs, {user, state}, count);
    for (const auto& [state, bytes] : sums.arenas) registry_.Set(kArenaBytes, {user, state}, bytes);
  }
}

void Measures::UsageFailed() { registry_.Add(kUsageFailures, {}, 1); }

std::string Measures::Text(const Operations& operations) {
  registry_.Set(kUptime, {}, static_cast<double>(NowMs() - started_ms_) / 1000);
  registry_.Set(kDraining, {}, operations.draining() ? 1 : 0);
  registry_.Clear(kLostLines);
  registry_.Add(kLostLines, {}, Real(log::Lost()));
  registry_.Clear(kUnderWay);
  for (const auto& [verb, count] : operations.CountByVerb()) {
    registry_.Set(kUnderWay, {verb}, Real(count));
  }
  registry_.Clear(kMovers);
  for (const auto& [uid, count] : CountMovers())
    registry_.Set(kMovers, {std::to_string(uid)}, count);
  return registry_.Text();
}

}  // namespace stasis::daemon
