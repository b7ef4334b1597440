#include "service/history.h"

#include <algorithm>

#include "base/clock.h"
#include "jobs/store.h"
#include "service/account_json.h"

namespace stasis::service {
namespace {

jobs::Checkpoint SuspendOf(const coordinator::OperationResult& result, std::string account) {
  jobs::Checkpoint checkpoint;
  checkpoint.kind = jobs::CheckpointKind::kSuspend;
  checkpoint.time_ms = NowMs();
  checkpoint.bytes = result.keep_context ? result.shared_bytes : result.device_bytes;
  // The driver writes all of its share.
  checkpoint.written_bytes =
      checkpoint.bytes - std::min(checkpoint.bytes, result.shared_bytes) + result.saved.copied;
  checkpoint.seconds = result.account.total_s;
  checkpoint.account = std::move(account);
  return checkpoint;
}

}  // namespace

void RememberOperation(const Paths& paths, coordinator::OperationResult& result) {
  // One that was only planned, or found nothing to do, has no phases.
  if (result.job.empty() || result.account.phases.empty()) return;
  const jobs::Store store(paths.jobs());
  const std::string account =
      AccountJson(result).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  Status noted;
  if (result.account.verb == "suspend") {
    noted = store.AddCheckpoint(result.job, SuspendOf(result, account));
  } else if (result.account.verb == "dump") {
    noted = store.SetAccount(result.job, result.image, account);
  }
  if (noted || noted.error().code == Code::kNotFound) return;  // the job was deleted meanwhile
  result.notes.push_back("all is done, but it could not be noted among the job's checkpoints: " +
                         noted.error().ToString());
}

}  // namespace stasis::service
