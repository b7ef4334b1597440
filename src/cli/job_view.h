// Formats a job for `ps` and `inspect`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "stasis/v1/stasis.pb.h"

namespace stasis::cli {

// Returns "42s", "7m", "3h" or "5d".
std::string FormatAge(int64_t since_ms, int64_t now_ms);
// Returns "2026-11-22 07:45:09" in the user's time zone.
std::string FormatTime(int64_t time_ms);

// Returns "running", "suspended", "exited 3", ...: docs/jobs.md lists all states.
std::string StateText(const v1::Job& job);
std::string GpuText(const v1::Job& job);
// Returns the pid of a running job, "-" otherwise.
std::string PidText(const v1::Job& job);

nlohmann::json ToJson(const v1::Job& job);
// Omits the account.
nlohmann::json ToJson(const v1::Checkpoint& checkpoint);

// Prints `problem`, the reason why the use of GPU memory is unknown, on stderr if it is not empty.
void ReportProblem(const std::string& problem);

}  // namespace stasis::cli
