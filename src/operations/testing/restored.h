// Starts a process as CRIU does in a restore of a fake program: stopped, with the old pid.
#pragma once

#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>

#include "gpu_state/testing/world.h"

namespace stasis::fakes {

// The new process has only copies of its parent's memory, and its threads share the memory of one
// thread in which sanitizers keep their state.
#ifdef __clang__
#define STASIS_NOT_SANITIZED \
  __attribute__((no_sanitize("address", "undefined", "thread", "coverage")))
#else
#define STASIS_NOT_SANITIZED
#endif

STASIS_NOT_SANITIZED inline int SleepForEver(void*) {
  for (;;) ::syscall(SYS_ppoll, nullptr, 0, nullptr, nullptr, 0);
}

// A thread as that of the driver.
STASIS_NOT_SANITIZED inline void StartDriverThread() {
  static char stack[16 << 10];
  ::clone(SleepForEver, stack + sizeof stack,
          CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD,
          nullptr);
}

// Starts a sleeping process of two threads with that pid. Returns 0 if the pid is not available.
STASIS_NOT_SANITIZED inline pid_t StartWithPid(pid_t pid) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<uint64_t>(&pid);
  arguments.set_tid_size = 1;
  const long child = ::syscall(SYS_clone3, &arguments, sizeof arguments);
  if (child == 0) {
    ::syscall(SYS_close_range, 0, ~0u, 0);
    ::syscall(SYS_setsid);
    StartDriverThread();
    SleepForEver(nullptr);
  }
  return child < 0 ? 0 : static_cast<pid_t>(child);
}

inline void KillAndReap(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// Starts the only process of the world's program again. Its GPU state is suspended.
inline Result<process::HostPid> StartRestored(World& world) {
  auto& process = world.program.At(1);
  const pid_t pid = StartWithPid(process.id.pid.value);
  if (pid == 0) return FailErrno(errno, "clone3");
  // The process starts its second thread itself.
  for (const Deadline deadline = Deadline::In(std::chrono::seconds(60));;) {
    STASIS_ASSIGN(const auto threads, process::ReadThreads({pid}));
    if (threads.size() == 2) break;
    if (deadline.passed()) {
      KillAndReap(pid);
      return Fail(Code::kInternal, "a fake process has not started its thread");
    }
    ::sched_yield();
  }
  std::lock_guard lock(world.program.mutex);
  process.id = process::ReadStat({pid})->id;
  process.state = device::ProcessState::kCheckpointed;
  process.agent->state = agent_protocol::State::kReleased;
  process.agent->memory.clear();
  process.agent->held.clear();
  return process::HostPid{pid};
}

}  // namespace stasis::fakes
