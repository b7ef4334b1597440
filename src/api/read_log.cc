// The method that reads a job's log, with or without following it.
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cerrno>

#include "api/methods.h"
#include "api/utf8.h"
#include "base/rights.h"
#include "jobs/log_reader.h"
#include "jobs/manage.h"
#include "jobs/store.h"
#include "jobs/watch.h"

namespace stasis::api {
namespace {

// Sends the log up to its end, but stops soon after `most` bytes: the log may grow as fast as it is
// read.
Status Send(Call& call, jobs::LogReader& log, uint64_t most) {
  for (uint64_t sent = 0; sent < most;) {
    v1::ReadLogResponse part;
    STASIS_ASSIGN(*part.mutable_data(), log.Next());
    if (part.data().empty()) break;
    sent += part.data().size();
    if (call.emit) call.emit(part);
  }
  return {};
}

}  // namespace

Result<v1::ReadLogResponse> ReadLog(Call& call, const v1::ReadLogRequest& request) {
  // The job's user chooses the log's path, which may lead through another process's /proc/PID/fd.
  // The capabilities would open that, so they are dropped. Without them the user's processes could
  // trace this worker and take its descriptors, some of which are the daemon's, unless it is not
  // dumpable.
  if (::prctl(PR_SET_DUMPABLE, 0L) != 0) return FailErrno(errno, "prctl");
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
    STASIS_TRY(Send(call, log, static_cast<uint64_t>(st.st_size)));
    return v1::ReadLogResponse();
  }
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store, job.id, job.log));
  for (;;) {
    // Read after the state: everything that an ended job has written is there.
    STASIS_ASSIGN(const jobs::Job now, watch.Look());
    STASIS_TRY(Send(call, log, UINT64_MAX));
    // Background processes of an ended job may still write.
    if (jobs::HasEnded(now.state) && jobs::BackgroundProcesses(now).empty()) {
      return v1::ReadLogResponse();
    }
    STASIS_TRY(watch.Wait(-1, {}));
  }
}

}  // namespace stasis::api
