// The daemon's metrics: docs/metrics.md.
//
// Safe to use from any thread.
#pragma once

#include <string>

#include "api/caller.h"
#include "api/metrics_registry.h"
#include "api/operation_table.h"
#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

class DaemonMetrics {
 public:
  explicit DaemonMetrics(int64_t started_ms);

  // Counts a call that was rejected before a worker started.
  void CountRejected(const std::string& method, const Error& error);
  // Counts a call that a worker has executed. `lost` is true if the worker ended without an answer.
  void CountCall(const std::string& method, const Result<std::string>& reply, bool lost);
  void ObservePhase(const std::string& verb, const v1::PhaseReport& phase);
  // `reply` is the last event of a streaming method, or the response.
  void ObserveOperation(const std::string& verb, double seconds, const Result<std::string>& reply);

  struct UserUsage {
    uid_t uid = 0;
    double age_s = 0;  // since a worker read it
    v1::Usage usage;
  };
  // Replaces the figures of all users.
  void SetUsages(const std::vector<UserUsage>& usages);
  void CountUsageFailure();
  // Replaces the figures of programs that share GPUs.
  void SetShares(const v1::ListSharesResponse& shares);

  // Returns all metrics in Prometheus' text format.
  std::string Text(const OperationTable& operations);

 private:
  // Counts the bytes and requests that the operation has exchanged with a repository.
  void ObserveTransfer(const std::string& verb, double seconds, const Result<std::string>& reply);

  MetricsRegistry registry_;
  const int64_t started_ms_;
};

}  // namespace stasis::api
