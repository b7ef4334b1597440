// Dumps and restores with parameters that a request cannot hold, for example callbacks. The methods
// for requests are in methods.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/call.h"
#include "base/result.h"
#include "operations/data_ahead.h"
#include "operations/dump.h"
#include "plan/plan.h"
#include "repository/image_record.h"
#include "repository/pull.h"
#include "repository/repository.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Dumps a program that moves to another host. `hand_over` is null for a round, after which the
// program continues to run, and set for the last dump. The image is not recorded as a checkpoint of
// the job.
Result<v1::OperationEvent> DumpToMove(Call& call, const v1::DumpRequest& request,
                                      operations::HandOver* hand_over);

// An image whose GPU memory goes from a repository straight to the arenas.
struct StreamedSource {
  const repository::Repository& repository;
  std::string name;                                       // of the image
  std::string shown_as;                                   // for the user
  repository::PullOptions options;                        // without progress
  std::string earlier_log;                                // RestoreOptions::earlier_log
  std::function<Status(plan::PhaseScope&)> before_adopt;  // RestoreOptions::before_adopt
  // The image whose GPU memory the arenas of `ahead` contain; null if there are none.
  std::shared_ptr<const repository::ImageRecord> earlier;
  operations::DataAhead* ahead = nullptr;  // RestoreOptions::ahead
};
// The request's `source` is used in errors only. The caller must add the repository and its
// location to the result's `transfer`.
Result<v1::OperationEvent> RestoreStreamed(Call& call, const v1::RestoreRequest& request,
                                           StreamedSource source);

}  // namespace stasis::api
