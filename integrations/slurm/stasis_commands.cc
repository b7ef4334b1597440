#include "slurm/stasis_commands.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "ipc/pidns_init.h"
#include "slurm/launcher.h"

namespace stasis::slurm {

void StasisCommands::Note(const std::string& text) { slurm::Note(files_, text); }

int StasisCommands::Run(const std::vector<std::string>& args) {
  // Not through a pipe, because helpers that outlive the command may keep it open.
  auto log = files_.OpenLog();
  if (!log) return RunShown(args);
  const off_t before = ::lseek(log->get(), 0, SEEK_END);
  auto child = Start({"-q", "--no-daemon"}, args, {{2, log->get()}});
  if (!child) return 1;
  const int code = Await(*child);
  std::string text(static_cast<size_t>(::lseek(log->get(), 0, SEEK_END) - before), '\0');
  if (PreadAll(log->get(), text.data(), text.size(), static_cast<uint64_t>(before))) {
    Print(text);
  }
  return code;
}

std::string StasisCommands::Ask(const std::vector<std::string>& args) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  UniqueFd read(ends[0]), write(ends[1]), null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  auto child = Start({"--json", "--no-daemon"}, args, {{1, write.get()}, {2, null.get()}});
  write.Reset();
  if (!child) return "";
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(read.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return Await(*child) == 0 ? text : "";
}

Status StasisCommands::StartAttached(const std::vector<std::string>& args) {
  STASIS_ASSIGN(attached_, Start({"-q", "--no-daemon"}, args, {{0, 0}, {1, 1}, {2, 2}}));
  return {};
}

void StasisCommands::KillAttached() {
  attached_.Kill(SIGKILL);
  (void)attached_.Wait();
}

void StasisCommands::StartBackground(const std::vector<std::string>& args) {
  if (background_) return;
  auto child = Start({"-q", "--no-daemon"}, args, {});
  if (child) background_ = std::move(*child);
}

void StasisCommands::CancelBackground() {
  if (!background_) return;
  background_->Kill(SIGTERM);
  (void)background_->Wait();
  background_.reset();
}

void StasisCommands::StartReserve(const std::vector<std::string>& args) {
  if (reserve_) return;
  // Its mover stays with it; it ends with this process, even if that is killed.
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  auto child = Start({"-q", "--no-daemon"}, args, {{2, null.get()}}, /*dies_with_parent=*/true);
  if (child) reserve_ = std::move(*child);
}

void StasisCommands::StopReserve() {
  if (!reserve_) return;
  reserve_->Kill(SIGKILL);
  (void)reserve_->Wait();
  reserve_.reset();
}

std::optional<int> StasisCommands::Reap() {
  const Deadline now = Deadline::In(std::chrono::milliseconds(0));
  if (background_ && background_->Wait(now)) background_.reset();
  if (reserve_ && reserve_->Wait(now)) reserve_.reset();
  auto status = attached_.Wait(now);
  if (!status) return std::nullopt;
  return CodeOfStatus(*status);
}

Result<Subprocess> StasisCommands::Start(std::vector<std::string> words,
                                         const std::vector<std::string>& args,
                                         std::map<int, int> fds, bool dies_with_parent) {
  SpawnOptions spawn;
  spawn.die_with_parent = dies_with_parent;
  words.insert(words.begin(), stasis_);
  words.insert(words.end(), args.begin(), args.end());
  spawn.argv = std::move(words);
  spawn.fds = std::move(fds);
  if (pidns_socket_ >= 0) spawn.fds[ipc::kPidnsSocketFd] = pidns_socket_;
  // `stasis` passes the rights to CRIU alone.
  spawn.rights = SpawnOptions::Rights::kDump;
  spawn.network_right = network_right_;
  auto child = Subprocess::Spawn(spawn);
  if (!child) Tell(child.error());
  return child;
}

int StasisCommands::RunShown(const std::vector<std::string>& args) {
  auto child = Start({"-q", "--no-daemon"}, args, {});
  return child ? Await(*child) : 1;
}

int StasisCommands::Await(Subprocess& child) {
  auto status = child.Wait();
  return status ? CodeOfStatus(*status) : 1;
}

}  // namespace stasis::slurm
