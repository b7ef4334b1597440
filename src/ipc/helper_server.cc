#include "ipc/helper_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "ipc/helper_process.h"
#include "ipc/resident.h"

namespace stasis::ipc {

bool EnterHelper(int argc, char** argv, HelperServerOptions& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    const char* value = argv[i + 1];
    const std::chrono::milliseconds number(std::strtol(value, nullptr, 10));
    if (option == "--library") options.library = value;
    if (option == "--gpu") options.gpu = value;
    if (option == "--listen-as") options.listen_path = value;
    if (option == "--idle-ms") options.idle_timeout = number;
    if (option == "--settle-ms") options.settle_timeout = number;
  }
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(kHelperSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET) {
    std::fprintf(stderr, "%s is started by stasis itself.\n", argv[0]);
    return false;
  }
  // Child processes of a driver must not inherit these descriptors; otherwise the disconnect of a
  // client would not be noticed, and the client's lock would never be released.
  for (int fd : {kHelperSocketFd, kHelperLockFd, kHelperListenFd}) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  ::signal(SIGPIPE, SIG_IGN);
  return true;
}

// The helper itself calls listen(), because SO_PEERCRED names the process that called listen().
UniqueFd ListenAsHelper() {
  UniqueFd listener(kHelperListenFd);
  if (::listen(kHelperListenFd, 8) != 0) listener.Reset();
  return listener;
}

UniqueFd AcceptClient(int listener) {
  UniqueFd client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (client && (::getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
                 peer.uid != ::geteuid())) {
    client.Reset();
  }
  return client;
}

NameWatch::NameWatch(std::string path) : path_(std::move(path)) {
  struct stat st;
  if (path_.empty() || ::lstat(path_.c_str(), &st) != 0) return;
  file_ = FileId::Of(st);
  events_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  // IN_ATTRIB reports the new number of links after a removal. IN_DELETE_SELF would not, because
  // the file itself exists as long as the socket is bound.
  if (!events_ || ::inotify_add_watch(events_.get(), path_.c_str(),
                                      IN_ATTRIB | IN_MOVE_SELF | IN_DONT_FOLLOW) < 0) {
    events_.Reset();
  }
}

bool NameWatch::IsRemoved() {
  char events[1024];
  while (::read(events_.get(), events, sizeof events) > 0) {
  }
  struct stat st;
  return ::lstat(path_.c_str(), &st) != 0 || !(FileId::Of(st) == file_);
}

void ExitHelper(const HelperServerOptions& options, int status) {
  if (options.resident()) RemoveResidentName(options.listen_path);
  ::_exit(status);
}

}  // namespace stasis::ipc
