// A job as `ps` and `inspect` show it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "stasis/v1/stasis.pb.h"

namespace stasis::cli {

// "42s", "7m", "3h", "5d".
std::string FormatAge(int64_t since_ms, int64_t now_ms);
// "2026-11-22 07:45:09", in the user's time zone.
std::string FormatTime(int64_t time_ms);

// "running", "suspended", "exited 3", ...: docs/jobs.md has all of them.
std::string StateText(const v1::Job& job);
std::string GpuText(const v1::Job& job);
// Its process, where one runs: "-" otherwise.
std::string PidText(const v1::Job& job);

nlohmann::json ToJson(const v1::Job& job);
// Without the account.
nlohmann::json ToJson(const v1::Checkpoint& checkpoint);

// Says on stderr what is missing of the GPUs, if anything is.
void ReportProblem(const std::string& problem);

}  // namespace stasis::cli
