#include "api/job_history.h"

#include <algorithm>

#include "api/result_json.h"
#include "api/utf8.h"
#include "base/clock.h"
#include "base/file.h"
#include "jobs/store.h"
#include "store/limits.h"

namespace stasis::api {
namespace {

jobs::Checkpoint SuspendOf(const v1::OperationResult& result, std::string account) {
  jobs::Checkpoint checkpoint;
  checkpoint.kind = jobs::CheckpointKind::kSuspend;
  checkpoint.time_ms = NowMs();
  checkpoint.bytes = result.keep_context() ? result.shared_bytes() : result.device_bytes();
  // The driver always writes all of the memory that it carries.
  checkpoint.written_bytes =
      checkpoint.bytes - std::min(checkpoint.bytes, result.shared_bytes()) + result.copied_bytes();
  checkpoint.seconds = result.total_s();
  checkpoint.account = std::move(account);
  return checkpoint;
}

}  // namespace

void RecordOperation(const Paths& paths, v1::OperationResult& result) {
  // A dry run, and an operation that found nothing to do, have no phases.
  if (result.job().empty() || result.phases().empty()) return;
  const jobs::Store store(paths.jobs());
  const std::string account = ResultJson(result).dump();
  Status noted;
  if (result.verb() == "suspend") {
    noted = store.AddCheckpoint(result.job(), SuspendOf(result, account));
  } else if (result.verb() == "dump") {
    noted = store.SetAccount(result.job(), result.image(), account);
  }
  if (noted || noted.error().code == Code::kNotFound) return;  // the job was deleted meanwhile
  result.add_notes(
      Utf8("the operation succeeded, but could not be added to the job's checkpoints: " +
           noted.error().ToString()));
}

void RecordCopy(const Paths& paths, const std::string& path,
                const repository::Registration& repository, const std::string& name,
                v1::OperationResult& result) {
  jobs::ImageCopy copy{repository.name, name};
  copy.plain = repository.name == repository.location && !repository.encrypted;
  const Status noted = jobs::Store(paths.jobs()).SetCopy(path, copy);
  if (noted) return;
  result.add_notes(Utf8("the image was copied, but the job's checkpoints do not name the copy: " +
                        noted.error().ToString()));
}

// The manifest is written last and deleted first, so it exists only if the image is complete.
bool ImageExists(const jobs::Checkpoint& checkpoint) {
  return !checkpoint.image.empty() && PathExists(checkpoint.image + "/" + store::kManifestName);
}

std::optional<RemoteImage> CopyOfJob(const Paths& paths, const std::string& job) {
  if (!jobs::IsValidId(job)) return std::nullopt;
  const auto loaded = jobs::Store(paths.jobs()).Load(job);
  if (!loaded || loaded->checkpoints.empty() || jobs::WasMoved(*loaded)) return std::nullopt;
  const jobs::Checkpoint& last = loaded->checkpoints.back();
  if (!last.copy || ImageExists(last)) return std::nullopt;
  return RemoteImage{last.copy->repository, last.copy->name, last.copy->plain};
}

}  // namespace stasis::api
