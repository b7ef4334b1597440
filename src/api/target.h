// The TARGET of a command.
#pragma once

#include <chrono>
#include <string>

#include "base/paths.h"
#include "base/result.h"
#include "checks/survey.h"
#include "containers/reference.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// `text` is a job's id, a process id or a container. kNotFound if there is none;
// kFailedPrecondition if it does not run. A container's target is its first process.
Result<checks::Target> ParseTarget(const Paths& paths, const std::string& text,
                                   const v1::ContainerPlaces& places);

// A usage error if a path is not absolute.
Result<containers::Places> PlacesOf(const v1::ContainerPlaces& message);

// Limit for a question to a container runtime.
inline constexpr std::chrono::seconds kRuntimeTimeout{30};

}  // namespace stasis::api
