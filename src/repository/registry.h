// The repositories that a user has named with `stasis repo add`: DATA/repositories/NAME.json, one
// for each. A record has no secrets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/id128.h"
#include "base/paths.h"
#include "base/result.h"
#include "objects/location.h"

namespace stasis::repository {

struct Registration {
  std::string name;
  std::string location;  // "s3://BUCKET/PREFIX" or the absolute path of a folder

  // For S3 only.
  std::string endpoint;               // "https://host[:port]"; empty: that of AWS for the region
  std::string region;                 // empty: us-east-1
  std::string addressing;             // "path", "host", or empty: see objects::s3::S3Options
  std::string ca_file;                // absolute; empty: the system's certificates
  std::string profile;                // of ~/.aws; empty: the default one
  uint64_t max_bytes_per_second = 0;  // 0: no limit

  // The repository's id and encryption when it was added. If they differ now, the repository was
  // replaced.
  Id128 id;
  bool encrypted = true;
  // If set, images pulled from this repository are restored without --trust-image.
  bool trusted = false;
  // Random, made when the repository was added. The origin of pulled images is derived from this
  // value and not from `id`, which the server chooses.
  Id128 origin_id;

  bool operator==(const Registration&) const = default;
};

// Returns true if `name` matches [a-z][a-z0-9._-]* and has at most 63 characters.
bool IsRepositoryName(std::string_view name);

// Returns kInvalidArgument for a wrong name, or kNotFound with the names that exist.
Result<Registration> FindRegistration(const Paths& paths, const std::string& name);
// Returns the names of all registered repositories, sorted.
Result<std::vector<std::string>> RegisteredNames(const Paths& paths);
// Returns all registrations, sorted by name. Returns an error if one is damaged, because commands
// could otherwise use another repository than the user expects.
Result<std::vector<Registration>> ListRegistrations(const Paths& paths);
// Returns kAlreadyExists if the name is taken, and kInvalidArgument for wrong values.
Status AddRegistration(const Paths& paths, const Registration& registration);
// Removes the registration. The repository itself is not changed.
Status RemoveRegistration(const Paths& paths, const std::string& name);

// Checks the values that a user gives: location, endpoint, addressing and so on.
Status CheckRegistration(const Registration& registration);

}  // namespace stasis::repository
