#include "jobs/watch.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>

namespace stasis::jobs {
namespace {

// Records appear by a rename. When a creator ends, its lock file is closed.
constexpr uint32_t kFolderEvents =
    IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;

}  // namespace

Result<Watch> Watch::Start(const Store& store, const std::string& id, const std::string& log) {
  // Fails if there is no such job.
  STASIS_TRY(store.Load(id));
  Watch watch(store, id);
  watch.inotify_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!watch.inotify_) return FailErrno(errno, "inotify_init");
  if (::inotify_add_watch(watch.inotify_.get(), store.Folder(id).c_str(), kFolderEvents) < 0) {
    return FailErrno(errno, "watch " + store.Folder(id));
  }
  if (!log.empty() && ::inotify_add_watch(watch.inotify_.get(), log.c_str(), IN_MODIFY) < 0) {
    return FailErrno(errno, "watch " + log);
  }
  return watch;
}

Result<Watch> Watch::Await(const Store& store, const std::string& id, const Deadline& deadline) {
  UniqueFd inotify(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const std::string folder = store.Folder(id), parent = folder.substr(0, folder.rfind('/'));
  if (!inotify || ::inotify_add_watch(inotify.get(), parent.c_str(), IN_MOVED_TO) < 0) {
    return FailErrno(errno, "watch " + parent);
  }
  for (;;) {
    // The folder appears before the job does, and the shim's records appear later in the folder.
    if (::inotify_add_watch(inotify.get(), folder.c_str(), IN_MOVED_TO) < 0 && errno != ENOENT) {
      return FailErrno(errno, "watch " + folder);
    }
    auto watch = Start(store, id);
    if (watch || watch.error().code != Code::kNotFound) return watch;
    pollfd wait{inotify.get(), POLLIN, 0};
    const int ready = TEMP_FAILURE_RETRY(::poll(&wait, 1, deadline.PollTimeout()));
    if (ready < 0) return FailErrno(errno, "poll");
    if (ready == 0) return Fail(Code::kDeadlineExceeded, "there is no job " + id + " yet");
    char events[4096];
    while (::read(inotify.get(), events, sizeof events) > 0) {
    }
  }
}

Result<Job> Watch::Look() {
  STASIS_ASSIGN(Job job, store_.Load(id_));
  if (job.processes && job.processes->root != watched_root_) {
    watched_root_ = job.processes->root;
    auto root = process::OpenPidfd(job.processes->root);
    auto shim = process::OpenPidfd(job.processes->shim);
    root_ = root ? std::move(*root) : UniqueFd();
    shim_ = shim ? std::move(*shim) : UniqueFd();
  }
  return job;
}

Status Watch::Wait(int extra_fd, const Deadline& deadline) {
  pollfd waits[] = {{inotify_.get(), POLLIN, 0},
                    {root_.get(), POLLIN, 0},
                    {shim_.get(), POLLIN, 0},
                    {extra_fd, POLLIN, 0}};
  int ready = TEMP_FAILURE_RETRY(::poll(waits, std::size(waits), deadline.PollTimeout()));
  if (ready < 0) return FailErrno(errno, "poll");
  if (ready == 0) return Fail(Code::kDeadlineExceeded, "job " + id_ + " is still running");
  char events[4096];
  while (::read(inotify_.get(), events, sizeof events) > 0) {
  }
  if (waits[1].revents != 0) root_.Reset();
  if (waits[2].revents != 0) shim_.Reset();
  return {};
}

Result<Job> AwaitEnd(const Store& store, const std::string& id, const Deadline& deadline) {
  STASIS_ASSIGN(Watch watch, Watch::Start(store, id));
  for (;;) {
    STASIS_ASSIGN(Job job, watch.Look());
    if (HasEnded(job.state)) return job;
    // Its machine's changes of a shared folder cause no events here.
    STASIS_TRY(CheckHere(job));
    STASIS_TRY(watch.Wait(-1, deadline));
  }
}

}  // namespace stasis::jobs
