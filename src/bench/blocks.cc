#include "bench/blocks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/file.h"
#include "base/install_layout.h"
#include "jobs/agent_library.h"

namespace stasis::bench {
namespace {

// Time limit for the slowest answer: a software GPU fills and compares on a CPU.
constexpr std::chrono::seconds kAnswer{600};
constexpr std::chrono::milliseconds kCancelInterval{200};
constexpr std::chrono::seconds kEnd{60};
constexpr size_t kMaxLine = 4096;

// Returns the caller's environment, but with the GPU and the agent of `options`.
std::vector<std::string> Environment(const BlocksOptions& options) {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    if (text.starts_with("CUDA_VISIBLE_DEVICES=") || text.starts_with("LD_PRELOAD=")) continue;
    env.emplace_back(text);
  }
  env.push_back("CUDA_VISIBLE_DEVICES=" + options.gpu.value);
  const char* preloaded = std::getenv("LD_PRELOAD");
  std::string preload = jobs::PreloadValue(preloaded == nullptr ? "" : preloaded, options.agent);
  if (!preload.empty()) env.push_back("LD_PRELOAD=" + preload);
  return env;
}

struct Pipe {
  UniqueFd read, write;
};
Result<Pipe> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

Result<Blocks> Blocks::Start(const BlocksOptions& options) {
  STASIS_ASSIGN(std::string root, InstallRoot());
  const std::string program = root + "/workloads/blocks";
  if (!PathExists(program)) {
    return Fail(Code::kNotFound, "the measured program is missing: " + program,
                "the installation is incomplete: unpack or build it again");
  }
  STASIS_ASSIGN(Pipe in, MakePipe());
  STASIS_ASSIGN(Pipe out, MakePipe());
  SpawnOptions spawn;
  spawn.argv = {program, "--commands", "--memory", std::to_string(options.size_bytes)};
  if (options.allocation_bytes > 0) {
    spawn.argv.insert(spawn.argv.end(), {"--allocation", std::to_string(options.allocation_bytes)});
  }
  spawn.env = Environment(options);
  spawn.fds = {{0, in.read.get()}, {1, out.write.get()}};
  spawn.new_session = true;  // Ctrl-C must reach only this process
  spawn.die_with_parent = true;
  Blocks blocks;
  STASIS_ASSIGN(blocks.child_, Subprocess::Spawn(spawn));
  blocks.running_ = true;
  blocks.in_ = std::move(in.write);
  blocks.out_ = std::move(out.read);
  blocks.cancelled_ = options.cancelled;
  out.write.Reset();
  STASIS_ASSIGN(auto stat, process::ReadStat({blocks.child_.pid()}));
  blocks.target_.name = std::to_string(stat.id.pid.value);
  blocks.target_.root = stat.id;
  STASIS_ASSIGN(std::string line, blocks.ReadLine());
  if (line != "READY") {
    return Fail(Code::kUnavailable, program + " cannot start: " + line,
                "`stasis check` checks this machine");
  }
  return blocks;
}

Blocks::Blocks(Blocks&& other) noexcept
    : child_(std::move(other.child_)),
      running_(std::exchange(other.running_, false)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      pending_(std::move(other.pending_)),
      cancelled_(std::move(other.cancelled_)),
      target_(std::move(other.target_)) {}

Blocks::~Blocks() {
  if (!running_) return;
  child_.Kill(SIGKILL);
  (void)child_.Wait(Deadline::In(kEnd));
}

Status Blocks::Say(const std::string& line) {
  return Annotate(WriteAll(in_.get(), line + "\n"),
                  "send the measured program the command " + line);
}

Result<std::string> Blocks::ReadLine() {
  const Deadline deadline = Deadline::In(kAnswer);
  while (true) {
    if (size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    if (cancelled_ && cancelled_()) return Fail(Code::kCancelled, "cancelled");
    if (deadline.passed()) {
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("the measured program did not answer in {} s", kAnswer.count()));
    }
    if (pending_.size() > kMaxLine) {
      return Fail(Code::kInternal, "the measured program sent unexpected output");
    }
    // poll() may miss a signal that arrives just before it; the next iteration sees it.
    pollfd readable{out_.get(), POLLIN, 0};
    if (::poll(&readable, 1, static_cast<int>(kCancelInterval.count())) <= 0) continue;
    char part[512];
    const ssize_t length = ::read(out_.get(), part, sizeof part);
    if (length < 0) return FailErrno(errno, "read from the measured program");
    if (length == 0) {
      return Fail(Code::kUnavailable, "the measured program ended" +
                                          (pending_.empty() ? std::string() : ": " + pending_));
    }
    pending_.append(part, static_cast<size_t>(length));
  }
}

Status Blocks::Fill() {
  STASIS_TRY(Say("fill"));
  STASIS_ASSIGN(std::string line, ReadLine());
  if (line == "FILLED") return {};
  return Fail(Code::kUnavailable, "the measured program could not write its memory: " + line);
}

Status Blocks::Verify() {
  STASIS_TRY(Say("verify"));
  STASIS_ASSIGN(std::string line, ReadLine());
  if (line.starts_with("OK ")) return {};
  if (line.starts_with("BAD ")) {
    return Fail(Code::kDataLoss,
                "GPU memory was not restored correctly: " + line.substr(4) + " words are wrong");
  }
  return Fail(Code::kUnavailable, "the measured program could not check its memory: " + line);
}

Status Blocks::Finish() {
  in_.Reset();
  STASIS_ASSIGN(std::string line, ReadLine());
  if (line != "EXIT-SUCCESS") {
    return Fail(Code::kDataLoss, "the measured program reported an error when it ended: " + line);
  }
  STASIS_ASSIGN(int status, child_.Wait(Deadline::In(kEnd)));
  running_ = false;
  if (status == 0) return {};
  return Fail(Code::kUnavailable, "the measured program " + DescribeWaitStatus(status));
}

}  // namespace stasis::bench
