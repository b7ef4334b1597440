#include "criu/inside.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"
#include "criu/inside_protocol.h"

namespace stasis::criu {
namespace {

constexpr char kProgram[] = "stasis-criu-inside";

tl::unexpected<Error> NotThere() {
  return Fail(Code::kUnavailable, Domain::kCriu, 0,
              "CRIU could not be started in the program's pid namespace");
}

// Receives one packet. Returns true and its content, or false at end-of-file.
Result<bool> Receive(int socket, const Deadline& deadline, Handover* said, UniqueFd* fd) {
  pollfd waiting{socket, POLLIN, 0};
  int ready = TEMP_FAILURE_RETRY(::poll(&waiting, 1, deadline.PollTimeout()));
  if (ready < 0) return FailErrno(errno, "poll");
  if (ready == 0) return Fail(Code::kDeadlineExceeded, "CRIU was not started in time");
  iovec part{said, sizeof *said};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t size = TEMP_FAILURE_RETRY(::recvmsg(socket, &message, MSG_CMSG_CLOEXEC));
  if (size < 0) return FailErrno(errno, "hear of CRIU");
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (size > 0 && c != nullptr && c->cmsg_type == SCM_RIGHTS) {
    int number;
    std::memcpy(&number, CMSG_DATA(c), sizeof number);
    fd->Reset(number);
  }
  if (size != 0 && size != static_cast<ssize_t>(sizeof *said)) {
    return Fail(Code::kInternal, std::string(kProgram) + " is of another version",
                "the installation is mixed: unpack or build it again");
  }
  return size != 0;
}

Error InWords(const Handover& said, const std::string& criu_path) {
  static constexpr const char* kWhat[] = {"", "enter the program's pid namespace",
                                          "start a process in the program's pid namespace",
                                          "make a socket for CRIU", "start "};
  const auto step = static_cast<size_t>(said.step);
  if (step >= std::size(kWhat)) return NotThere().value();
  std::string what = kWhat[step];
  if (said.step == HandoverStep::kExec) what += criu_path;
  return ErrnoError(said.error, what);
}

}  // namespace

Result<Inside> Inside::Make(const std::string& criu_path, const std::string& images_dir,
                            const std::string& log_path) {
  Inside inside;
  STASIS_ASSIGN(std::string program, LibexecProgram(kProgram));
  inside.command_ = MakeSwrkCommand(criu_path);
  inside.command_.argv.insert(inside.command_.argv.begin(), program);
  const std::string log_folder = std::filesystem::path(AbsolutePath(log_path)).parent_path();
  STASIS_ASSIGN(inside.images_, Open(images_dir, O_PATH | O_DIRECTORY));
  STASIS_ASSIGN(inside.log_folder_, Open(log_folder, O_PATH | O_DIRECTORY));
  STASIS_ASSIGN(SocketPair pair, MakeSocketPair());
  inside.ours_ = std::move(pair.ours);
  inside.its_ = std::move(pair.criu);
  return inside;
}

std::map<int, int> Inside::fds() const {
  return {{kHandoverFd, its_.get()}, {kImagesFd, images_.get()}, {kLogFolderFd, log_folder_.get()}};
}

Result<Session> Inside::Accept(const Deadline& deadline) {
  its_.Reset();
  UniqueFd socket;
  for (;;) {
    Handover said;
    STASIS_ASSIGN(bool more, Receive(ours_.get(), deadline, &said, &socket));
    if (!more) break;
    if (said.step != HandoverStep::kDone) return Fail(InWords(said, command_.argv[1]));
  }
  if (!socket) return NotThere();
  return Session::Inside(std::move(socket));
}

Result<Session> Inside::Spawn(const std::string& criu_path, const DumpRequest& request,
                              process::HostPid member, const std::map<int, int>& extra_fds,
                              const Deadline& deadline) {
  STASIS_ASSIGN(Inside inside, Make(criu_path, request.images_dir, request.log_path));
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, member.value, 0)));
  if (!pidfd) return FailErrno(errno, "open process " + process::ToString(member));
  STASIS_ASSIGN(UniqueFd null, Open("/dev/null", O_RDWR));
  SpawnOptions spawn;
  spawn.argv = inside.command_.argv;
  spawn.argv.insert(spawn.argv.begin() + 1, "--enter");
  spawn.env = inside.command_.env;
  spawn.new_session = true;
  spawn.ignored_signals = {SIGXFSZ};  // required by EndDump
  spawn.fds = inside.fds();
  spawn.fds.insert(extra_fds.begin(), extra_fds.end());
  spawn.fds[STDERR_FILENO] = null.get();
  spawn.fds[kNamespaceFd] = pidfd.get();
  STASIS_ASSIGN(Subprocess starter, Subprocess::Spawn(spawn));
  auto session = inside.Accept(deadline);
  // The starter only forks; its message tells whether that succeeded.
  auto ended = starter.Wait(deadline);
  if (session && !ended) return Fail(std::move(ended).error());
  return session;
}

}  // namespace stasis::criu
