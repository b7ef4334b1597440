// Parses the TARGET of a command.
#pragma once

#include <chrono>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "checks/survey.h"
#include "containers/reference.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// `text` is a job's id, a process id or a container. Returns kNotFound if there is no such job,
// process or container, and kFailedPrecondition if it is not running. The target of a container is
// its first process.
Result<checks::Target> ParseTarget(const Paths& paths, const std::string& text,
                                   const v1::ContainerPlaces& places);

// Returns a usage error if a path is not absolute.
Result<containers::Places> PlacesOf(const v1::ContainerPlaces& message);

// Time limit for asking a container runtime.
inline constexpr std::chrono::seconds kRuntimeTimeout{30};

}  // namespace stasis::api
