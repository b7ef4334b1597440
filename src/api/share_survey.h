// Facts about jobs that share GPUs, read with their owner's rights.
#pragma once

#include <string>

#include "api/call.h"
#include "base/result.h"
#include "process/proc.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// The agent of a job that shares GPUs touches the file that this environment variable names when
// its process begins to use a GPU, so that the daemon connects to it without polling.
inline constexpr char kShareVariable[] = "STASIS_SHARE_SIGNAL";
// The agent of a job touches the same file, which this variable names, when its GPU memory grows,
// for arena.reserve.
inline constexpr char kGrowthVariable[] = "STASIS_GROWTH_SIGNAL";
inline std::string ShareSignalFile(const std::string& job_folder) { return job_folder + "/share"; }

// Returns an error if a job with this class and agent cannot share GPUs. An empty class is correct.
Status CheckShare(const std::string& share_class, bool without_agent, const std::string& agent);
// Returns an error that names the process if a running program cannot share GPUs: it has no agent,
// the agent cannot give its memory away, or host memory does not suffice for it.
Status CheckCanShare(Call& call, process::HostPid root, const std::string& share_class);

// SurveyShares (methods.h) for one job; empty: for all.
Result<v1::ShareSurvey> SurveyJobs(Call& call, const v1::SurveySharesRequest& request,
                                   const std::string& job);

}  // namespace stasis::api
