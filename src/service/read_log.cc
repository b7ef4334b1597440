// A job's log, as it is and as it grows.
#include <sys/stat.h>

#include "base/rights.h"
#include "jobs/log_reader.h"
#include "jobs/manage.h"
#include "jobs/store.h"
#include "jobs/watch.h"
#include "service/convert.h"
#include "service/methods.h"

namespace stasis::service {
namespace {

// Tells what comes next, up to the end; not much more than `most` bytes, of a log that grows as
// fast as it is read.
Status Tell(Call& call, jobs::LogReader& log, uint64_t most) {
  for (uint64_t told = 0; told < most;) {
    v1::ReadLogResponse part;
    STASIS_ASSIGN(*part.mutable_data(), log.Next());
    if (part.data().empty()) break;
    told += part.data().size();
    if (call.emit) call.emit(part);
  }
  return {};
}

}  // namespace

Result<v1::ReadLogResponse> ReadLog(Call& call, const v1::ReadLogRequest& request) {
  // The log is where the job's user says: also behind another process's folders (/proc/PID/fd),
  // which such a right would open.
  DropRights();
  const jobs::Store store(call.paths.jobs());
  STASIS_ASSIGN(const jobs::Job job, store.Load(request.job()));
  STASIS_TRY(jobs::CheckHasOutput(job, "read the log of"));
  const uint64_t tail = request.tail_bytes();
  jobs::LogReader log(job.log, tail == 0 ? 0 : jobs::LogReader::TailOffset(job.log, tail));
  struct stat st {};
  if (!log.regular() || ::stat(job.log.c_str(), &st) != 0) {
    return Fail(Code::kNotFound, "there is no log " + Utf8(job.log));
  }
  if (!request.follow()) {
    STASIS_TRY(Tell(call, log, static_cast<uint64_t>(st.st_size)));
    return v1::ReadLogResponse();
  }
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store, job.id, job.log));
  for (;;) {
    // Read after the look: what an ended job has written is all there.
    STASIS_ASSIGN(const jobs::Job now, watch.Look());
    STASIS_TRY(Tell(call, log, UINT64_MAX));
    // What the job has left in the background may go on to write.
    if (jobs::HasEnded(now.state) && jobs::BackgroundProcesses(now).empty()) {
      return v1::ReadLogResponse();
    }
    STASIS_TRY(watch.Wait(-1, {}));
  }
}

}  // namespace stasis::service
