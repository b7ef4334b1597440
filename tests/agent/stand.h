// A target under the agent on a software GPU of the test's own, and the other end of its memory.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/fd.h"
#include "device/cuda/driver_functions.h"
#include "wire/client.h"

namespace stasis::agent_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
inline constexpr milliseconds kLong = seconds(20);
inline constexpr auto kNot = wire::AgentClient::Hold::kNot;
inline constexpr auto kUntilCommit = wire::AgentClient::Hold::kUntilCommit;

#define ASSERT_DONE(expr)                                                        \
  do {                                                                           \
    auto&& done_ = (expr);                                                       \
    ASSERT_TRUE(done_.has_value()) << #expr << ": " << done_.error().ToString(); \
  } while (0)

class Target {
 public:
  // `program` (by default the target) with `arguments`, preloaded or not.
  explicit Target(const std::vector<std::string>& arguments, bool agent = true,
                  const std::string& program = {});
  ~Target();
  Target(const Target&) = delete;

  process::HostPid pid() const { return {pid_}; }
  std::string Hear();
  // Whether it says something within a tenth of a second.
  bool Speaks();
  // Sends without waiting for the answer.
  void Say(const std::string& line);
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  int Wait();

  Result<wire::AgentClient> Connect() { return wire::AgentClient::Find(pid(), kLong); }

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_;
  std::string buffer_;
};

// Calls of the target that shall fail, until the end of this (softgpu/README.md).
class Fault {
 public:
  Fault(const Target& target, const std::string& rules);
  ~Fault() { Write(""); }
  Fault(const Fault&) = delete;

 private:
  void Write(const std::string& rules);
  std::string path_;
};

// Whether its header says that it shares memory with another process.
bool SaysItShares(const Target& target);

// A client of the test's own making, for what AgentClient never sends.
UniqueFd Knock(Target& target);

// What is free on the software GPU, seen from this process.
size_t FreeBytes();
void UseGpu();  // cuInit and a context in this process, once

// The driver's own part of a suspend and a resume.
void LockAndCheckpoint(const Target& target);
void RestoreAndUnlock(const Target& target);

// Takes the memory behind the descriptors to this process's RAM and gives it up; then makes new
// memory elsewhere and puts the bytes there: what a mover does.
std::vector<std::vector<char>> TakeAway(wire::Export* taken);
std::vector<UniqueFd> PutBack(const wire::Export& taken,
                              const std::vector<std::vector<char>>& bytes);

std::vector<int> Numbers(const std::vector<UniqueFd>& fds);

}  // namespace stasis::agent_test
