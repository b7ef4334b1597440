#include "migration/ssh.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>

namespace stasis::migration {
namespace {

constexpr size_t kMaxHostBytes = 512;
constexpr std::chrono::seconds kEndsSoon{2};
// The exit codes of a shell that does not find the program, or cannot run it.
constexpr int kNotFound = 127, kNotRunnable = 126;
// The exit code of ssh after an error of its own, for which it has printed a message.
constexpr int kSshFailed = 255;

}  // namespace

Status CheckHost(const std::string& host) {
  const bool printable = std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isgraph(c) != 0 && c != '\'' && c != '"' && c != '`' && c != '$' && c != '\\' &&
           c != '/';
  });
  if (!host.empty() && host.size() <= kMaxHostBytes && host.front() != '-' && printable) return {};
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              fmt::format("\"{}\" is not a host for ssh", host),
              "use [USER@]HOST, or an alias from ~/.ssh/config");
}

Result<std::unique_ptr<SshCommand>> SshCommand::Start(const std::string& command,
                                                      const std::string& host,
                                                      const std::string& remote_command) {
  STASIS_TRY(CheckHost(host));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return FailErrno(errno, "socketpair");
  }
  UniqueFd here(ends[0]), there(ends[1]);
  SpawnOptions spawn;
  spawn.argv = {"/bin/sh", "-c", "exec " + command + " \"$@\"", "sh", host, remote_command};
  spawn.fds = {{0, there.get()}, {1, there.get()}};
  // In a session of its own, ssh does not get Ctrl-C, which cancels the migration and must not cut
  // the connection.
  spawn.new_session = true;
  STASIS_ASSIGN(Subprocess process, Subprocess::Spawn(spawn));
  return std::unique_ptr<SshCommand>(new SshCommand(std::move(process), std::move(here), host));
}

SshCommand::~SshCommand() {
  if (ended_) return;
  process_.Kill(SIGKILL);
  (void)process_.Wait();
}

Error SshCommand::Explain(Error error) {
  if (ended_) return error;
  auto status = process_.Wait(Deadline::In(kEndsSoon));
  if (!status) return error;
  ended_ = true;
  error.message += fmt::format("; ssh to {} {}", host_, DescribeWaitStatus(*status));
  if (!WIFEXITED(*status)) return error;
  const int code = WEXITSTATUS(*status);
  if (code == kNotFound || code == kNotRunnable) {
    error.hint = fmt::format(
        "Install Stasis on {} so that `ssh {} stasis version` works, or set migrate.remote_command",
        host_, host_);
  } else if (code == kSshFailed) {
    error.hint = fmt::format(
        "ssh has printed the reason. `ssh -o BatchMode=yes {} stasis version` must work without "
        "asking a question",
        host_);
  }
  return error;
}

void SshCommand::Finish(const Deadline& deadline) {
  socket_.Reset();
  if (!ended_ && process_.Wait(deadline)) ended_ = true;
}

}  // namespace stasis::migration
