// A target under the agent on a separate software GPU, and a client for its memory.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/cuda/driver_functions.h"
#include "agent_client/client.h"
#include "base/fd.h"

namespace stasis::agent_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr milliseconds kLong = seconds(20);
inline constexpr auto kKeep = agent_client::AgentClient::Floor::kKeep;
inline constexpr const char* kInvalidValue = "error 1";  // a target's answer
inline constexpr auto kNot = agent_client::AgentClient::Hold::kNot;
inline constexpr auto kUntilCommit = agent_client::AgentClient::Hold::kUntilCommit;

#define ASSERT_DONE(expr)                                                        \
  do {                                                                           \
    auto&& done_ = (expr);                                                       \
    ASSERT_TRUE(done_.has_value()) << #expr << ": " << done_.error().ToString(); \
  } while (0)

class Target {
 public:
  // Starts `program` (default: the target) with `arguments`, with or without the agent.
  explicit Target(const std::vector<std::string>& arguments, bool agent = true,
                  const std::string& program = {});
  ~Target();
  Target(const Target&) = delete;

  process::HostPid pid() const { return {pid_}; }
  std::string Hear();
  // Returns true if a line arrives within a tenth of a second, or the given time.
  bool Speaks() { return SpeaksWithin(milliseconds(100)); }
  bool SpeaksWithin(milliseconds time);
  // Sends a line without waiting for the answer.
  void Say(const std::string& line);
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  int Wait();

  Result<agent_client::AgentClient> Connect() {
    return agent_client::AgentClient::Find(pid(), kLong);
  }

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_;
  std::string buffer_;
};

// Injects faults into the target's calls while the object exists (softgpu/README.md).
class Fault {
 public:
  Fault(const Target& target, const std::string& rules);
  ~Fault() { Write(""); }
  Fault(const Fault&) = delete;

 private:
  void Write(const std::string& rules);
  std::string path_;
};

// Blocks calls with the fault `hold(number)` while the object exists.
class Hold {
 public:
  explicit Hold(int number);
  ~Hold() { Release(); }
  Hold(const Hold&) = delete;
  // Returns when a call is blocked.
  void AwaitCall() const;
  void Release();

 private:
  std::string hold_, held_;
};

// Returns true if the target's header says that it shares memory with another process.
bool SaysItShares(const Target& target);

// Returns how many sockets the process has open.
int SocketsOf(process::HostPid pid);

// Connects without AgentClient, to send input that AgentClient never sends.
UniqueFd ConnectSocket(Target& target);

// Returns the free memory of the software GPU.
size_t FreeBytes();
void UseGpu();  // calls cuInit and creates a context in this process, once

// The driver's part of a suspend and of a resume.
void LockAndCheckpoint(const Target& target);
void RestoreAndUnlock(const Target& target);

// TakeAway copies the memory behind the descriptors to this process and frees it; the second
// function allocates new memory elsewhere and copies the data back, like a mover.
std::vector<std::vector<char>> TakeAway(agent_client::Export* taken);
std::vector<UniqueFd> PutBack(const agent_client::Export& taken,
                              const std::vector<std::vector<char>>& bytes);

std::vector<int> Numbers(const std::vector<UniqueFd>& fds);

}  // namespace stasis::agent_test
