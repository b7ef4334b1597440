#include "criu/inside.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"
#include "criu/inside_protocol.h"
#include "ipc/pidns_init.h"
#include "ipc/socket.h"

namespace stasis::criu {
namespace {

constexpr char kProgram[] = "stasis-criu-inside";

tl::unexpected<Error> NotThere() {
  return Fail(Code::kUnavailable, Domain::kCriu, 0,
              "CRIU could not be started in the program's pid namespace");
}

// Receives one packet. Returns true and its content, or false at end-of-file.
Result<bool> Receive(int socket, const Deadline& deadline, Handover* said, UniqueFd* fd) {
  if (!ipc::AwaitReadable(socket, deadline)) {
    return Fail(Code::kDeadlineExceeded, "CRIU was not started in time");
  }
  STASIS_ASSIGN(ipc::Packet packet, ipc::ReceivePacket(socket, said, sizeof *said));
  if (!packet.fds.empty()) *fd = std::move(packet.fds.front());
  if (packet.size != 0 && packet.size != sizeof *said) {
    return Fail(Code::kInternal, std::string(kProgram) + " belongs to another version of Stasis",
                "the installation mixes two versions; unpack or build it again");
  }
  return packet.size != 0;
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

Result<Inside> Inside::Make(const std::string& criu_path, const std::string& plugins,
                            const std::string& images_dir, const std::string& log_path) {
  Inside inside;
  STASIS_ASSIGN(std::string program, LibexecProgram(kProgram));
  inside.command_ = MakeSwrkCommand(criu_path, plugins);
  inside.command_.argv.insert(inside.command_.argv.begin(), {program, "--reopen"});
  const std::string log_folder = std::filesystem::path(AbsolutePath(log_path)).parent_path();
  STASIS_ASSIGN(inside.images_, Open(images_dir, O_PATH | O_DIRECTORY));
  STASIS_ASSIGN(inside.log_folder_, Open(log_folder, O_PATH | O_DIRECTORY));
  STASIS_ASSIGN(ipc::SocketPair pair, ipc::MakeSocketPair());
  inside.ours_ = std::move(pair.ours);
  inside.its_ = std::move(pair.theirs);
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
    if (said.step != HandoverStep::kDone) return Fail(InWords(said, command_.argv[2]));
  }
  if (!socket) return NotThere();
  return Session::Inside(std::move(socket));
}

Result<Session> Inside::Spawn(const std::string& criu_path, const DumpRequest& request,
                              process::HostPid member, const std::map<int, int>& extra_fds,
                              const Deadline& deadline) {
  STASIS_ASSIGN(Inside inside,
                Make(criu_path, request.options.plugins, request.images_dir, request.log_path));
  STASIS_ASSIGN(UniqueFd null, Open("/dev/null", O_RDWR));
  SpawnOptions spawn;
  spawn.argv = inside.command_.argv;
  spawn.env = inside.command_.env;
  spawn.new_session = true;
  spawn.ignored_signals = {SIGXFSZ};  // required by EndDump
  spawn.fds = inside.fds();
  spawn.fds.insert(extra_fds.begin(), extra_fds.end());
  spawn.fds[STDERR_FILENO] = null.get();
  STASIS_ASSIGN(const uint64_t pid_namespace, process::ReadNamespace(member, "pid"));
  if (const auto* init = ipc::PidnsInit::Get(); init && init->pid_namespace() == pid_namespace) {
    spawn.argv.erase(spawn.argv.begin() + 1);
    spawn.rights = SpawnOptions::Rights::kDump;
    spawn.network_right = request.options.tcp == Tcp::kKeep;
    STASIS_TRY(init->Spawn(spawn, /*pid=*/0));
    return inside.Accept(deadline);
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, member.value, 0)));
  if (!pidfd) return FailErrno(errno, "open process " + process::ToString(member));
  spawn.argv[1] = "--enter";
  spawn.fds[kNamespaceFd] = pidfd.get();
  STASIS_ASSIGN(Subprocess starter, Subprocess::Spawn(spawn));
  auto session = inside.Accept(deadline);
  // The starter only forks CRIU. Its message has already reported whether that succeeded.
  auto ended = starter.Wait(deadline);
  if (session && !ended) return Fail(std::move(ended).error());
  return session;
}

}  // namespace stasis::criu
