// What the daemon counts and measures of the calls that it passes on: docs/metrics.md.
//
// Thread safe.
#pragma once

#include <string>

#include "base/result.h"
#include "daemon/caller.h"
#include "daemon/operations.h"
#include "metrics/registry.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::daemon {

class Measures {
 public:
  explicit Measures(int64_t started_ms);

  // A call that nobody began to work on.
  void Refused(const std::string& method, const Error& error);
  // A call that a worker has worked on.
  void Ended(const std::string& method, const Result<std::string>& reply, bool lost);
  void PhaseEnded(const std::string& verb, const v1::PhaseReport& phase);
  // An operation; `reply` is its last event where it has a stream.
  void OperationEnded(const std::string& verb, double seconds, const Result<std::string>& reply);

  // Of all users, in the place of what was known before. `age_s`: since it was asked for.
  struct UserUsage {
    uid_t uid = 0;
    double age_s = 0;
    v1::Usage usage;
  };
  void SetUsages(const std::vector<UserUsage>& usages);
  void UsageFailed();

  // All of it as Prometheus reads it.
  std::string Text(const Operations& operations);

 private:
  metrics::Registry registry_;
  const int64_t started_ms_;
};

}  // namespace stasis::daemon
