// The results of `stasis bench --remote`: medians, rates, and the ratios to plain transfers, each
// with the project's target.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/remote_measure.h"
#include "bench/report.h"

namespace stasis::bench {

struct RemoteReport {
  Stats put, push, get, restore;  // in seconds
  std::vector<Ratio> ratios;      // of median rates
};
RemoteReport MakeRemoteReport(const RemoteMeasurements& found);

// The repository and store that were measured, for the output.
struct RemoteSubject {
  std::string name;      // of the repository
  std::string location;  // likewise
  bool encrypted = true;
  std::string store;  // where the local image was
};
// The targets apply only to encrypted repositories, so other repositories are not compared with
// them.
std::string RemoteText(const RemoteSubject& subject, const RemoteMeasurements& found);
// The document of docs/schema/bench-remote.json.
nlohmann::json RemoteJson(const RemoteSubject& subject, const RemoteMeasurements& found);

}  // namespace stasis::bench
