// Checks that a program starts under the agent and that the agent answers.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "agent_client/client.h"
#include "base/install_layout.h"
#include "base/subprocess.h"
#include "health/machine.h"
#include "process/proc.h"

namespace stasis::health {
namespace {

constexpr size_t kLongestLine = 256;

// The test program. The destructor kills it.
struct Probe {
  std::unique_ptr<Subprocess> child;
  UniqueFd input, output;

  Probe() = default;
  Probe(Probe&&) = default;
  ~Probe() {
    if (!child) return;
    child->Kill(SIGKILL);
    (void)child->Wait(Deadline::In(std::chrono::seconds(2)));
  }
};

Result<Probe> Start(const std::string& agent, const MachineOptions& machine) {
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
  UniqueFd its_input(in[0]);
  Probe probe;
  probe.input.Reset(in[1]);
  if (::pipe2(out, O_CLOEXEC) != 0) return FailErrno(errno, "make a pipe");
  probe.output.Reset(out[0]);
  UniqueFd its_output(out[1]);

  SpawnOptions options;
  STASIS_ASSIGN(std::string program, LibexecProgram("stasis-agent-probe"));
  options.argv = {program, machine.full ? "use" : "init"};
  if (!machine.cuda_library.empty()) options.argv.push_back(machine.cuda_library);
  options.env = ScrubbedEnvironment();
  options.env->push_back("LD_PRELOAD=" + agent);
  options.fds = {{0, its_input.get()}, {1, its_output.get()}};
  options.die_with_parent = true;
  STASIS_ASSIGN(Subprocess child, Subprocess::Spawn(options));
  probe.child = std::make_unique<Subprocess>(std::move(child));
  return probe;
}

Result<std::string> ReadLine(int fd, const Deadline& deadline) {
  std::string line;
  while (line.size() < kLongestLine && !line.ends_with('\n')) {
    pollfd ready{fd, POLLIN, 0};
    if (TEMP_FAILURE_RETRY(::poll(&ready, 1, deadline.PollTimeout())) <= 0) {
      return Fail(Code::kDeadlineExceeded,
                  "the driver did not start in time in a test program with the agent");
    }
    char c;
    if (TEMP_FAILURE_RETRY(::read(fd, &c, 1)) != 1) {
      return Fail(Code::kUnavailable, "a test program with the agent died when it started");
    }
    line += c;
  }
  return line;
}

bool HasMapped(pid_t pid, const std::string& library) {
  auto mappings = process::ReadMappings({pid});
  return mappings && std::any_of(mappings->begin(), mappings->end(),
                                 [&](const auto& mapping) { return mapping.path == library; });
}

Result<Finding> Ask(const Machine& machine) {
  if (!machine.options.agent_library) return Fail(machine.options.agent_library.error());
  const std::string& library = *machine.options.agent_library;
  STASIS_ASSIGN(Probe probe, Start(library, machine.options));
  STASIS_ASSIGN(std::string line, ReadLine(probe.output.get(), machine.Patience()));
  const pid_t pid = probe.child->pid();
  if (!HasMapped(pid, library)) {
    return Fail(Code::kUnimplemented, "the loader did not load " + library + " from LD_PRELOAD");
  }
  if (line != "CUDA error 0\n") {
    return Finding::Of("agent", Level::kNote,
                       "a program starts with the agent, but the driver does not work in it: " +
                           line.substr(0, line.size() - 1));
  }
  if (!machine.options.full) {
    return Finding::Of("agent", Level::kOk,
                       "a program starts and the driver initialises with the agent loaded; --full "
                       "also checks that the agent answers: " +
                           library);
  }
  STASIS_ASSIGN(auto client, agent_client::AgentClient::Find({pid}, machine.options.patience));
  const agent_protocol::HelloReply& hello = client.hello();
  if (hello.blockers != 0) {
    return Finding::Of(
        "agent", Level::kWarning,
        fmt::format("the agent answers, but cannot save GPU memory here: {}",
                    std::string_view(hello.blocker_text,
                                     ::strnlen(hello.blocker_text, sizeof hello.blocker_text))));
  }
  return Finding::Of("agent", Level::kOk,
                     "a program starts with the agent, which answers: " + library);
}

}  // namespace

void CheckAgent(const Machine& machine, Findings& findings) {
  // A driver that hung in an earlier check would hang here too, so skip this check.
  if (!machine.driver && machine.driver.error().code == Code::kDeadlineExceeded) return;
  auto found = Ask(machine);
  findings.push_back(
      found ? *std::move(found)
            : Finding::Of("agent", Level::kCannot, found.error().ToString(), found.error().hint));
}

}  // namespace stasis::health
