#include "api/daemon_metrics.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

namespace stasis::api {
namespace {

constexpr double kSeconds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                               5,    10,    25,   50,  100,  250, 500, 1000};

// Index into kFamilies.
enum Metric : size_t {
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
  kTransferSeconds,
  kTransferBytes,
  kTransferKnown,
  kTransferRequests,
  kTransferRetries,
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
  kSharePrograms,
  kShareBytes,
  kShareWaiting,
  kShareLongestWait,
  kShareSwaps,
  kShareFailedSwaps,
  kShareLost,
  kMetrics
};

// docs/metrics.md lists the same metrics; a test compares it with the daemon's output.
constexpr MetricFamily kFamilies[kMetrics] = {
    {"stasis_build_info", MetricType::kGauge, "version", "Always 1"},
    {"stasis_start_time_seconds", MetricType::kGauge, "", "Start time of the daemon since 1970"},
    {"stasis_uptime_seconds", MetricType::kGauge, "", "Time since the daemon started"},
    {"stasis_draining", MetricType::kGauge, "",
     "1 while the daemon is draining and begins no operations"},
    {"stasis_operations_total", MetricType::kCounter, "verb,outcome,code,domain",
     "Finished operations, by error code and domain"},
    {"stasis_operations_under_way", MetricType::kGauge, "verb", "Operations that have not ended"},
    {"stasis_operation_seconds", MetricType::kHistogram, "verb,outcome", "Duration of operations",
     kSeconds},
    {"stasis_phase_seconds", MetricType::kHistogram, "verb,phase",
     "Duration of phases that succeeded", kSeconds},
    {"stasis_pause_seconds", MetricType::kHistogram, "verb",
     "Time for which a dump stopped a program that continued after it", kSeconds},
    {"stasis_bytes_total", MetricType::kCounter, "verb,path",
     "Memory that successful operations moved"},
    {"stasis_repository_seconds", MetricType::kHistogram, "operation",
     "Duration of successful operations on repositories", kSeconds},
    {"stasis_repository_bytes_total", MetricType::kCounter, "operation,direction",
     "Bytes of objects that successful operations sent and received, with retries"},
    {"stasis_repository_deduplicated_bytes_total", MetricType::kCounter, "operation",
     "Memory and files that the other side had already"},
    {"stasis_repository_requests_total", MetricType::kCounter, "operation",
     "Requests of successful operations, with retries"},
    {"stasis_repository_retries_total", MetricType::kCounter, "operation",
     "Requests that were repeated"},
    {"stasis_calls_total", MetricType::kCounter, "method,code", "Calls that a worker has executed"},
    {"stasis_calls_refused_total", MetricType::kCounter, "method,code",
     "Calls that were rejected before a worker started"},
    {"stasis_workers_lost_total", MetricType::kCounter, "method",
     "Workers that ended without an answer"},
    {"stasis_log_lines_lost_total", MetricType::kCounter, "",
     "Lines of the daemon's log that were dropped"},
    {"stasis_jobs", MetricType::kGauge, "uid,state", "Jobs, by the state last recorded"},
    {"stasis_suspended_processes", MetricType::kGauge, "uid", "Suspended processes"},
    {"stasis_suspended_bytes", MetricType::kGauge, "uid",
     "GPU memory that suspended processes have freed"},
    {"stasis_suspended_oldest_seconds", MetricType::kGauge, "uid",
     "Time since the oldest suspend, 0 if no process is suspended"},
    {"stasis_arena_bytes", MetricType::kGauge, "uid,state",
     "Memory in arenas, by the states of `arena ls`"},
    {"stasis_arena_room_bytes", MetricType::kGauge, "uid",
     "Memory that new arenas can still allocate"},
    {"stasis_movers", MetricType::kGauge, "uid", "Running movers, including idle ones"},
    {"stasis_usage_age_seconds", MetricType::kGauge, "uid", "Age of this user's figures"},
    {"stasis_usage_failures_total", MetricType::kCounter, "",
     "Failed attempts to read a user's figures"},
    {"stasis_share_programs", MetricType::kGauge, "uid,class,state",
     "Programs that share GPUs, by the states of `share`"},
    {"stasis_share_bytes", MetricType::kGauge, "uid,where",
     "Data of programs that share GPUs, on a GPU and in host memory"},
    {"stasis_share_waiting", MetricType::kGauge, "uid", "Programs that wait for a GPU"},
    {"stasis_share_longest_wait_seconds", MetricType::kGauge, "uid",
     "Time for which the program that waits longest has waited"},
    {"stasis_share_swaps", MetricType::kGauge, "uid", "Swaps of the programs that share GPUs now"},
    {"stasis_share_failed_swaps", MetricType::kGauge, "uid", "Failed swaps of these programs"},
    {"stasis_share_swap_seconds", MetricType::kGauge, "uid",
     "Time that swaps of these programs took"},
};

const char* OutcomeOf(const Result<std::string>& reply) {
  if (reply) return "done";
  return reply.error().not_undone ? "not_undone" : "failed";
}

std::string CodeOf(const Result<std::string>& reply) {
  return std::string(CodeName(reply ? Code::kOk : reply.error().code));
}

// Counts movers by user. Any program that has the name of a mover is counted too.
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

double ToDouble(uint64_t number) { return static_cast<double>(number); }

// The bytes and requests that an operation has exchanged with a repository.
struct Transfer {
  const char* operation;
  uint64_t sent_bytes = 0, received_bytes = 0, known_bytes = 0, requests = 0, retries = 0;
};

// Reads the transfer from the reply of an operation. Returns nullopt if the operation used no
// repository, or failed.
std::optional<Transfer> TransferOf(const std::string& verb, const std::string& reply) {
  if (verb == "collectgarbage") {
    v1::CollectGarbageResponse gc;
    // A gc of a local store sends no requests.
    if (!gc.ParseFromString(reply) || gc.requests() == 0) return std::nullopt;
    return Transfer{"gc", gc.sent_bytes(), gc.received_bytes(), 0, gc.requests(), gc.retries()};
  }
  static constexpr struct {
    std::string_view verb;
    const char* operation;
  } kOperations[] = {{"pushimage", "push"}, {"pullimage", "pull"}, {"restore", "restore"}};
  for (const auto& row : kOperations) {
    v1::OperationEvent last;
    if (verb != row.verb || !last.ParseFromString(reply) || !last.result().has_transfer()) continue;
    const v1::Transfer& t = last.result().transfer();
    return Transfer{row.operation,   t.sent_bytes(), t.received_bytes(),
                    t.known_bytes(), t.requests(),   t.retries()};
  }
  return std::nullopt;
}

}  // namespace

DaemonMetrics::DaemonMetrics(int64_t started_ms) : registry_(kFamilies), started_ms_(started_ms) {
  registry_.Set(kBuildInfo, {STASIS_VERSION}, 1);
  registry_.Set(kStarted, {}, static_cast<double>(started_ms) / 1000);
  registry_.Add(kUsageFailures, {}, 0);
}

void DaemonMetrics::CountRejected(const std::string& method, const Error& error) {
  registry_.Add(kRefused, {method, std::string(CodeName(error.code))}, 1);
}

void DaemonMetrics::CountCall(const std::string& method, const Result<std::string>& reply,
                              bool lost) {
  registry_.Add(kCalls, {method, CodeOf(reply)}, 1);
  if (lost) registry_.Add(kLostWorkers, {method}, 1);
}

void DaemonMetrics::ObservePhase(const std::string& verb, const v1::PhaseReport& phase) {
  registry_.Observe(kPhaseSeconds, {verb, phase.name()}, phase.seconds());
}

void DaemonMetrics::ObserveOperation(const std::string& verb, double seconds,
                                     const Result<std::string>& reply) {
  ObserveTransfer(verb, seconds, reply);
  const std::string domain = reply ? "" : std::string(DomainName(reply.error().domain));
  registry_.Add(kOperations, {verb, OutcomeOf(reply), CodeOf(reply), domain}, 1);
  registry_.Observe(kOperationSeconds, {verb, OutcomeOf(reply)}, seconds);
  v1::OperationEvent last;
  // Only streaming methods return an OperationEvent; a dry run moves no bytes and has no phases.
  if (!reply || !last.ParseFromString(*reply) || !last.has_result()) return;
  const auto& result = last.result();
  if (result.phases().empty()) return;
  const uint64_t shared = std::min(result.shared_bytes(), result.device_bytes());
  registry_.Add(kBytes, {verb, "data_plane"}, ToDouble(shared));
  registry_.Add(kBytes, {verb, "driver"}, ToDouble(result.device_bytes() - shared));
  if (verb == "dump") registry_.Add(kBytes, {verb, "written"}, ToDouble(result.added_bytes()));
  if (verb == "restore") registry_.Add(kBytes, {verb, "read"}, ToDouble(result.image_bytes()));
  if (result.pause_s() > 0) registry_.Observe(kPauseSeconds, {verb}, result.pause_s());
}

void DaemonMetrics::ObserveTransfer(const std::string& verb, double seconds,
                                    const Result<std::string>& reply) {
  if (!reply) return;
  const std::optional<Transfer> transfer = TransferOf(verb, *reply);
  if (!transfer) return;
  const std::string operation = transfer->operation;
  registry_.Observe(kTransferSeconds, {operation}, seconds);
  registry_.Add(kTransferBytes, {operation, "sent"}, ToDouble(transfer->sent_bytes));
  registry_.Add(kTransferBytes, {operation, "received"}, ToDouble(transfer->received_bytes));
  registry_.Add(kTransferKnown, {operation}, ToDouble(transfer->known_bytes));
  registry_.Add(kTransferRequests, {operation}, ToDouble(transfer->requests));
  registry_.Add(kTransferRetries, {operation}, ToDouble(transfer->retries));
}

void DaemonMetrics::SetUsages(const std::vector<UserUsage>& usages) {
  for (size_t metric : {kJobs, kSuspendedProcesses, kSuspendedBytes, kSuspendedSeconds, kArenaBytes,
                        kArenaRoom, kUsageAge}) {
    registry_.Clear(metric);
  }
  const double now_s = static_cast<double>(NowMs()) / 1000;
  // The sums for one user, who may have several folders.
  struct Sums {
    double processes = 0, bytes = 0, oldest_s = 0, age_s = 0;
    double room = -1;
    std::map<std::string, double> jobs, arenas;
  };
  std::map<uid_t, Sums> users;
  for (const auto& [uid, age_s, usage] : usages) {
    Sums& sums = users[uid];
    sums.processes += ToDouble(usage.suspended_processes());
    sums.bytes += ToDouble(usage.suspended_bytes());
    if (usage.suspended_since_unix_s() > 0) {
      const double since = static_cast<double>(usage.suspended_since_unix_s());
      sums.oldest_s = std::max({sums.oldest_s, now_s - since, 0.0});
    }
    sums.age_s = std::max(sums.age_s, age_s);
    const double room = ToDouble(usage.arena_room_bytes());
    sums.room = sums.room < 0 ? room : std::min(sums.room, room);
    for (const auto& [state, count] : usage.jobs()) sums.jobs[state] += ToDouble(count);
    for (const auto& [state, bytes] : usage.arena_bytes()) sums.arenas[state] += ToDouble(bytes);
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

void DaemonMetrics::SetShares(const v1::ListSharesResponse& shares) {
  for (size_t metric : {kSharePrograms, kShareBytes, kShareWaiting, kShareLongestWait, kShareSwaps,
                        kShareFailedSwaps, kShareLost}) {
    registry_.Clear(metric);
  }
  struct Sums {
    double on_gpu = 0, in_memory = 0, waiting = 0, longest_s = 0, swaps = 0, failed = 0, lost_s = 0;
    std::map<std::pair<std::string, std::string>, double> programs;  // by class and state
  };
  std::map<uid_t, Sums> users;
  for (const v1::Share& share : shares.shares()) {
    Sums& sums = users[share.uid()];
    ++sums.programs[{share.class_(), share.state()}];
    const bool away = share.state() == "suspended" || share.state() == "context kept";
    for (const auto& gpu : share.gpus()) {
      (away ? sums.in_memory : sums.on_gpu) += ToDouble(gpu.data_bytes());
    }
    if (share.has_waits_s()) ++sums.waiting;
    sums.longest_s = std::max(sums.longest_s, share.waits_s());
    sums.swaps += ToDouble(share.swaps());
    sums.failed += ToDouble(share.failed_swaps());
    sums.lost_s += share.lost_s();
  }
  for (const auto& [uid, sums] : users) {
    const std::string user = std::to_string(uid);
    for (const auto& [key, count] : sums.programs) {
      registry_.Set(kSharePrograms, {user, key.first, key.second}, count);
    }
    registry_.Set(kShareBytes, {user, "gpu"}, sums.on_gpu);
    registry_.Set(kShareBytes, {user, "host"}, sums.in_memory);
    registry_.Set(kShareWaiting, {user}, sums.waiting);
    registry_.Set(kShareLongestWait, {user}, sums.longest_s);
    registry_.Set(kShareSwaps, {user}, sums.swaps);
    registry_.Set(kShareFailedSwaps, {user}, sums.failed);
    registry_.Set(kShareLost, {user}, sums.lost_s);
  }
}

void DaemonMetrics::CountUsageFailure() { registry_.Add(kUsageFailures, {}, 1); }

std::string DaemonMetrics::Text(const OperationTable& operations) {
  registry_.Set(kUptime, {}, static_cast<double>(NowMs() - started_ms_) / 1000);
  registry_.Set(kDraining, {}, operations.draining() ? 1 : 0);
  registry_.Clear(kLostLines);
  registry_.Add(kLostLines, {}, ToDouble(log::Lost()));
  registry_.Clear(kUnderWay);
  for (const auto& [verb, count] : operations.CountByVerb()) {
    registry_.Set(kUnderWay, {verb}, ToDouble(count));
  }
  registry_.Clear(kMovers);
  for (const auto& [uid, count] : CountMovers())
    registry_.Set(kMovers, {std::to_string(uid)}, count);
  return registry_.Text();
}

}  // namespace stasis::api
