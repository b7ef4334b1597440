// The method that reads a job's log, with or without following it.
#include <sys/stat.h>

#include "api/methods.h"
#include "api/utf8.h"
#include "jobs/log_reader.h"
#include "jobs/manage.h"
#include "jobs/store.h"
#include "jobs/watch.h"

namespace stasis::api {
namespace {

bool IsCancelled(const Call& call) { return call.cancelled && call.cancelled(); }

// Sends the log up to its end, but stops soon after `most` bytes, because the log may grow as fast
// as it is read.
Status Send(Call& call, jobs::LogReader& log, uint64_t most) {
  for (uint64_t sent = 0; sent < most && !IsCancelled(call);) {
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
  const jobs::Store store(call.paths.jobs());
  STASIS_ASSIGN(const jobs::Job job, store.Load(request.job()));
  STASIS_TRY(jobs::CheckHasOutput(job, "read the log of"));
  const uint64_t tail = request.tail_bytes();
  jobs::LogReader log(job.log, tail == 0 ? 0 : jobs::LogReader::TailOffset(job.log, tail));
  struct stat st {};
  if (!log.regular() || ::stat(job.log.c_str(), &st) != 0) {
    return Fail(Code::kNotFound, "there is no log " + Utf8(job.log));
  }
  v1::ReadLogResponse last;
  last.set_log(Utf8(job.log));
  if (!request.follow()) {
    STASIS_TRY(Send(call, log, static_cast<uint64_t>(st.st_size)));
    return last;
  }
  // Another machine's additions to the log cause no events here.
  STASIS_TRY(jobs::CheckHere(job));
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store, job.id, job.log));
  for (;;) {
    // The log is read after the state, so that it is complete if the job has ended.
    STASIS_ASSIGN(const jobs::Job now, watch.Look());
    STASIS_TRY(Send(call, log, UINT64_MAX));
    // Background processes of an ended job may still write.
    const bool ended = jobs::HasEnded(now.state) && jobs::BackgroundProcesses(now).empty();
    if (ended || IsCancelled(call)) return last;
    STASIS_TRY(watch.Wait(-1, {}));
  }
}

}  // namespace stasis::api
