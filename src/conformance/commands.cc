#include "conformance/commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>

#include "base/deadline.h"
#include "base/file.h"
#include "base/subprocess.h"

namespace stasis::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxOutput = 64 << 10;
constexpr size_t kMaxProgramLog = 64u << 20;
// An interrupted operation rolls back.
constexpr seconds kRollBack{20};
constexpr seconds kUnkillable{10};

std::string TailOf(const std::string& path) {
  auto file = Open(path, O_RDONLY);
  if (!file) return {};
  struct stat info {};
  if (::fstat(file->get(), &info) != 0) return {};
  const auto size = static_cast<size_t>(info.st_size);
  std::string text(std::min(size, kMaxOutput), '\0');
  if (!PreadAll(file->get(), text.data(), text.size(), size - text.size())) return {};
  return text;
}

int CountLines(const std::string& text, const std::string& prefix) {
  int count = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // an incomplete line
    if (std::string_view(text).substr(at).starts_with(prefix)) ++count;
    at = end + 1;
  }
  return count;
}

class RealCommands final : public Commands {
 public:
  RealCommands(std::string root, std::string folder, std::string arena)
      : root_(std::move(root)), folder_(std::move(folder)), arena_(std::move(arena)) {}
  ~RealCommands() override { (void)RemoveAll(); }

  Ran Stasis(const std::vector<std::string>& arguments, milliseconds limit) override {
    std::vector<std::string> argv = {root_ + "/bin/stasis", "--no-daemon"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return Run(std::move(argv), limit);
  }
  Ran Probe(const std::vector<std::string>& arguments, milliseconds limit) override {
    std::vector<std::string> argv = {probe()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return Run(std::move(argv), limit);
  }
  std::string probe() const override { return root_ + "/workloads/hip_probe"; }

  Status AwaitLines(const std::string& log, const std::string& prefix, int count,
                    milliseconds limit) override;

  void UseLibrary(const std::string& path) override { library_ = path; }
  Status CanOpen(const std::string& path) override {
    STASIS_ASSIGN(auto file, Open(path, O_RDWR));
    return {};
  }
  std::string CriuLog() override;
  void Kill(int pid) override { (void)::kill(pid, SIGKILL); }
  Status RemoveAll() override;

 private:
  std::string Out() const { return folder_ + "/out"; }
  std::string Err() const { return folder_ + "/err"; }
  std::string State() const { return folder_ + "/state"; }
  std::vector<std::string> Environment() const;
  Ran Run(std::vector<std::string> argv, milliseconds limit);

  const std::string root_;  // of the installation
  const std::string folder_;
  const std::string arena_;  // a folder in a tmpfs
  std::string library_;
};

// The caller's, without its settings of Stasis, which would lead the commands to the user's own
// jobs, arenas and folders.
std::vector<std::string> RealCommands::Environment() const {
  constexpr std::string_view kKept[] = {"STASIS_CRIU", "STASIS_CUDA_LIBRARY"};
  std::map<std::string, std::string> ours = {
      {"STASIS_STATE_DIR", State()}, {"STASIS_IMAGE_DIR", folder_ + "/images"},
      {"STASIS_ARENA_DIR", arena_},  {"STASIS_CONFIG", folder_ + "/config.toml"},
      {"STASIS_HELPER_IDLE_S", "0"},  // helpers end with their commands
  };
  if (!library_.empty()) ours["STASIS_CUDA_LIBRARY"] = library_;
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool kept = std::find(std::begin(kKept), std::end(kKept), name) != std::end(kKept);
    if (name.starts_with("STASIS_") && !kept) continue;
    if (!ours.contains(std::string(name))) env.emplace_back(text);
  }
  for (const auto& [name, value] : ours) env.push_back(name + "=" + value);
  return env;
}

// Output goes to files, because a program that the command starts may keep pipes open.
Ran RealCommands::Run(std::vector<std::string> argv, milliseconds limit) {
  Ran ran;
  auto run = [&]() -> Status {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    STASIS_ASSIGN(UniqueFd out, Open(Out(), kFlags));
    STASIS_ASSIGN(UniqueFd err, Open(Err(), kFlags));
    SpawnOptions spawn;
    spawn.argv = std::move(argv);
    spawn.env = Environment();
    spawn.fds = {{STDOUT_FILENO, out.get()}, {STDERR_FILENO, err.get()}};
    spawn.new_session = true;  // a process group of its own
    spawn.rights = SpawnOptions::Rights::kDump;
    STASIS_ASSIGN(Subprocess child, Subprocess::Spawn(spawn));
    auto status = child.Wait(Deadline::In(limit));
    if (!status) {
      ran.how = fmt::format("did not end in {} s", limit.count() / 1000);
      child.Kill(SIGINT);
      status = child.Wait(Deadline::In(kRollBack));
      ran.how += status ? " and was interrupted" : " and was killed";
      (void)::kill(-child.pid(), SIGKILL);
      if (!status) (void)child.Wait(Deadline::In(kUnkillable));
      return {};
    }
    ran.how = DescribeWaitStatus(*status);
    if (WIFEXITED(*status)) ran.code = WEXITSTATUS(*status);
    return {};
  };
  if (Status done = run(); !done) ran.how = "could not be run: " + done.error().ToString();
  ran.out = TailOf(Out());
  ran.err = TailOf(Err());
  return ran;
}

Status RealCommands::AwaitLines(const std::string& log, const std::string& prefix, int count,
                                milliseconds limit) {
  const Deadline deadline = Deadline::In(limit);
  UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (changes.get() < 0) return FailErrno(errno, "inotify_init");
  if (::inotify_add_watch(changes.get(), log.c_str(), IN_MODIFY) < 0) {
    return FailErrno(errno, "watch " + log);
  }
  std::optional<int> wanted;
  while (true) {
    STASIS_ASSIGN(const std::string text, ReadFile(log, kMaxProgramLog));
    constexpr char kFailed[] = "FAILED";
    if (const size_t at = text.find(kFailed); at != std::string::npos) {
      return Fail(Code::kDataLoss,
                  "the program reports: " + text.substr(at, text.find('\n', at) - at));
    }
    const int found = CountLines(text, prefix);
    if (!wanted) wanted = found + count;
    if (found >= *wanted) return {};
    pollfd changed{changes.get(), POLLIN, 0};
    if (::poll(&changed, 1, deadline.PollTimeout()) == 0) {
      constexpr size_t kShown = 400;
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("the program printed no {} lines '{}' in {} s; its last output: {}",
                              count, prefix, limit.count() / 1000,
                              text.substr(text.size() - std::min(text.size(), kShown))));
    }
    char events[4096];
    while (::read(changes.get(), events, sizeof events) > 0) {
    }
  }
}

std::string RealCommands::CriuLog() {
  const std::string run = State() + "/run";
  auto names = ListDir(run);
  if (!names) return {};
  std::string text;
  for (const std::string& name : *names) {
    if (name.starts_with("last-criu")) text += name + ":\n" + TailOf(run + "/" + name);
  }
  return text;
}

Status RealCommands::RemoveAll() {
  (void)::umount2(arena_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  STASIS_TRY(Annotate(RemoveTree(arena_), "remove " + arena_));
  return Annotate(RemoveTree(folder_), "remove " + folder_);
}

// Makes a place for arenas that no other installation uses: a tmpfs of its own, or a folder in
// /dev/shm if this user may not mount one.
Result<std::string> MakeArenaFolder(const std::string& folder) {
  const std::string own = folder + "/arena";
  STASIS_TRY(MakeDirs(own, 0700));
  if (::mount("stasis-check", own.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "mode=0700,size=0") == 0) {
    return own;
  }
  std::string shared = "/dev/shm/stasis-check-XXXXXX";
  if (::mkdtemp(shared.data()) == nullptr) return FailErrno(errno, "make the folder " + shared);
  return shared;
}

}  // namespace

Result<std::unique_ptr<Commands>> MakeCommands(const std::string& root) {
  const char* place = std::getenv("TMPDIR");
  std::string folder =
      AbsolutePath(place != nullptr && *place != '\0' ? place : "/tmp") + "/stasis-check-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return FailErrno(errno, "make the folder " + folder);
  // Programs load the agent from below this folder.
  if (::chmod(folder.c_str(), 0711) != 0) return FailErrno(errno, "chmod " + folder);
  STASIS_TRY(ReplaceFile(folder + "/config.toml", ""));
  STASIS_ASSIGN(std::string arena, MakeArenaFolder(folder));
  auto commands = std::make_unique<RealCommands>(root, std::move(folder), std::move(arena));
  if (!PathExists(commands->probe())) {
    return Fail(Code::kNotFound, "the program of this check is missing: " + commands->probe(),
                "the installation is incomplete: unpack or build it again");
  }
  return commands;
}

}  // namespace stasis::conformance
