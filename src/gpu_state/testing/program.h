// A program for tests: real processes that sleep, so that /proc is real, with fake GPU state and
// fake agents.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agent_client/agent_link.h"
#include "base/fd.h"
#include "device/device_control.h"
#include "process/end.h"
#include "process/tree.h"

namespace stasis::fakes {

inline constexpr uint64_t kPiece = 2u << 20;  // size of one piece of GPU memory

inline device::GpuUuid GpuA() { return {"GPU-aaaaaaaa-0000-0000-0000-000000000000"}; }
inline device::GpuUuid GpuB() { return {"GPU-bbbbbbbb-0000-0000-0000-000000000000"}; }

// GPU memory is a file with a recognisable content.
inline UniqueFd NewMemory(const std::string& content) {
  UniqueFd fd(::memfd_create("gpu", MFD_CLOEXEC));
  if (::ftruncate(fd.get(), kPiece) != 0 || ::pwrite(fd.get(), content.data(), content.size(), 0) !=
                                                static_cast<ssize_t>(content.size())) {
    return {};
  }
  return fd;
}
inline std::string ContentOf(int fd) {
  std::string text(32, '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  return size < 0 ? "unreadable" : std::string(text.c_str());
}
inline UniqueFd Duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// The agent in a process.
struct Agent {
  agent_protocol::State state = agent_protocol::State::kOpen;
  std::vector<device::GpuUuid> gpus;  // the GPU of each piece
  std::vector<UniqueFd> memory;       // mapped
  std::vector<UniqueFd> held;         // held from Release to Commit
  std::vector<std::string> content;   // the content of each piece, as the program wrote it
  bool connected = false;
  bool imported = false;                 // the memory was returned by a resume
  bool steps = true;                     // supports CloseInSteps
  int busy_rounds = 0;                   // how often CloseInSteps and Rest return false
  std::vector<device::GpuUuid> visible;  // the GPUs that it shows; empty: it hides none
  uint32_t blockers = 0;
  std::string blocker_text;
  uint64_t driver_bytes = 0;  // memory that only the driver can carry
  uint64_t managed_bytes = 0;
  std::vector<agent_protocol::IpcPeer> peers;
  uint32_t ipc_ranges = 0;
  bool joined = true;  // memory of other processes is mapped
  // The program frees all but this many pieces after ExportRunning.
  std::optional<size_t> keeps_when_copied;

  void KeepPieces(size_t count) {
    gpus.resize(count);
    memory.resize(count);
    content.resize(count);
  }
};

struct Process {
  int number = 0;
  process::ProcessId id;
  device::ProcessState state = device::ProcessState::kRunning;
  std::vector<device::GpuUuid> gpus;
  uint64_t device_bytes = 0;
  std::vector<std::string> files_held;  // files that stay open after the driver's checkpoint
  std::unique_ptr<Agent> agent;         // null: none
  bool uses_gpu = true;
  bool queues_stopped = false;  // by CRIU's plugin, in a process of HIP
};

// A tree of sleeping processes in a session of its own. A child is started by SIGUSR1 to the root.
class Sleepers {
 public:
  explicit Sleepers(int count) {
    root_ = ::fork();
    if (root_ == 0) RunRoot();
    for (int i = 1; i < count; ++i) AddChild();
    while (Tree().members.size() < static_cast<size_t>(count)) ::usleep(200);
  }
  ~Sleepers() {
    for (const auto& stat : Tree().members) ::kill(stat.id.pid.value, SIGKILL);
    ::kill(root_, SIGKILL);
    ::waitpid(root_, nullptr, 0);
  }
  Sleepers(const Sleepers&) = delete;

  process::ProcessTree Tree() const {
    auto tree = process::ReadTree({root_});
    return tree ? *tree : process::ProcessTree();
  }
  // Returns when the child exists.
  void AddChild() const {
    const size_t before = Tree().members.size();
    // The root is ready for the signal when it has left the test's session.
    while (::getsid(root_) != root_) ::usleep(100);
    ::kill(root_, SIGUSR1);
    while (Tree().members.size() == before) ::usleep(200);
  }
  static void Kill(const process::ProcessId& id) {
    ::kill(id.pid.value, SIGKILL);
    (void)process::WaitForEnd(id, Deadline::In(std::chrono::seconds(5)));
  }

 private:
  [[noreturn]] static void RunRoot() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::signal(SIGCHLD, SIG_IGN);
    const int null = ::open("/dev/null", O_RDWR);
    for (int fd : {0, 1, 2}) ::dup2(null, fd);
    ::syscall(SYS_close_range, 3, ~0u, 0);
    ::setsid();
    for (;;) {
      siginfo_t info;
      if (::sigwaitinfo(&set, &info) != SIGUSR1 || ::fork() != 0) continue;
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::pause();
    }
  }

  pid_t root_ = -1;
};

// The fakes lock `mutex` around every use of a Process or Agent. A test must do the same while an
// operation is running. At, Find and processes() do not lock it; the other methods do.
class Program {
 public:
  explicit Program(int processes) : sleepers_(processes) {
    for (const auto& stat : sleepers_.Tree().members) {
      auto process = std::make_unique<Process>();
      process->number = static_cast<int>(processes_.size()) + 1;
      process->id = stat.id;
      process->gpus = {GpuA()};
      process->device_bytes = 64u << 20;
      processes_.push_back(std::move(process));
    }
  }

  // Adds an agent with `pieces` pieces of memory on each of the GPUs.
  Agent& AddAgent(int number, int pieces, const std::vector<device::GpuUuid>& gpus = {GpuA()}) {
    Process& process = At(number);
    process.agent = std::make_unique<Agent>();
    process.gpus = gpus;
    for (const auto& gpu : gpus) {
      for (int i = 0; i < pieces; ++i) {
        Agent& agent = *process.agent;
        agent.gpus.push_back(gpu);
        agent.content.push_back("process " + std::to_string(number) + " piece " +
                                std::to_string(agent.content.size()));
        agent.memory.push_back(NewMemory(agent.content.back()));
      }
    }
    return *process.agent;
  }

  Process& At(int number) { return *processes_.at(static_cast<size_t>(number) - 1); }
  Process* Find(process::HostPid pid) {
    for (auto& process : processes_) {
      if (process->id.pid == pid) return process.get();
    }
    return nullptr;
  }
  std::vector<std::unique_ptr<Process>>& processes() { return processes_; }
  process::ProcessId IdOf(int number) {
    std::lock_guard lock(mutex);
    return At(number).id;
  }
  process::ProcessId root() { return IdOf(1); }
  const Sleepers& sleepers() const { return sleepers_; }
  void Kill(int number) { Sleepers::Kill(IdOf(number)); }
  bool Alive(int number) { return process::IsAlive(IdOf(number)); }
  // Adds a process that uses the GPU to the tree.
  Process& AddProcess() {
    sleepers_.AddChild();
    std::lock_guard lock(mutex);
    for (const auto& stat : sleepers_.Tree().members) {
      if (Find(stat.id.pid) != nullptr) continue;
      auto process = std::make_unique<Process>();
      process->number = static_cast<int>(processes_.size()) + 1;
      process->id = stat.id;
      process->gpus = {GpuA()};
      processes_.push_back(std::move(process));
    }
    return *processes_.back();
  }

  // Returns an empty string if the process is running with all its memory, otherwise the reason.
  std::string WhyNotRunning(int number) {
    std::lock_guard lock(mutex);
    Process& process = At(number);
    const std::string name = "process " + std::to_string(number);
    if (process.state != device::ProcessState::kRunning) {
      return name + " is " + std::string(device::StateName(process.state));
    }
    if (process.queues_stopped) return name + ": its queues are stopped";
    if (!process.agent) return "";
    const Agent& agent = *process.agent;
    if (agent.state != agent_protocol::State::kOpen) return name + ": its gate is not open";
    if (agent.connected) return name + ": its agent has a client";
    if (!agent.joined) return name + ": memory of other processes is not mapped";
    return WhyNotWhole(name, agent.memory, agent.content);
  }
  static std::string WhyNotWhole(const std::string& name, const std::vector<UniqueFd>& memory,
                                 const std::vector<std::string>& content) {
    if (memory.size() != content.size()) return name + ": pieces of its memory are missing";
    for (size_t i = 0; i < memory.size(); ++i) {
      const std::string found = ContentOf(memory[i].get());
      if (found != content[i]) return name + ": '" + content[i] + "' became '" + found + "'";
    }
    return "";
  }

  std::mutex mutex;  // guards the processes and their agents

 private:
  Sleepers sleepers_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace stasis::fakes
