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
  std::vector<Ratio> ratios;      // ratios of median rates
};
RemoteReport MakeRemoteReport(const RemoteMeasurements& found);

// The repository and store that were measured, for the output.
struct RemoteSubject {
  std::string name;      // the repository's name
  std::string location;  // the repository's location
  bool encrypted = true;
  std::string store;  // where the local image was
};
// The targets apply only to encrypted repositories, so other repositories are not compared with
// them.
std::string RemoteText(const RemoteSubject& subject, const RemoteMeasurements& found);
// Returns the document that docs/schema/bench-remote.json describes.
nlohmann::json RemoteJson(const RemoteSubject& subject, const RemoteMeasurements& found);

}  // namespace stasis::bench
