// Fake agents for a Program. A call of process 1's agent is "agent 1 Close" in the CallLog. The
// program's mutex guards the state of all agents; a link is used by one thread at a time.
#pragma once

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent_client/agent_link.h"
#include "gpu_state/testing/call_log.h"
#include "gpu_state/testing/program.h"
#include "process/end.h"

namespace stasis::fakes {

inline agent_protocol::Uuid WireUuid(const device::GpuUuid& gpu) {
  agent_protocol::Uuid uuid{};
  (void)device::GpuUuidBytes(gpu, uuid.bytes);
  return uuid;
}
// The name that the agent of a process uses among IPC peers.
inline agent_protocol::Uuid IpcName(int number) {
  agent_protocol::Uuid uuid{};
  uuid.bytes[0] = static_cast<uint8_t>(number);
  return uuid;
}

class FakeAgentLink final : public agent_client::AgentLink {
 public:
  FakeAgentLink(Program& program, CallLog& log, Process& process)
      : program_(program), log_(log), process_(process), agent_(*process.agent) {
    Refresh();
  }
  // Acts like an agent whose client disconnects.
  ~FakeAgentLink() override {
    std::lock_guard lock(program_.mutex);
    agent_.connected = false;
    if (agent_.state == agent_protocol::State::kReleased && !agent_.held.empty()) {
      agent_.memory = std::move(agent_.held);
      agent_.held.clear();
      agent_.state = agent_protocol::State::kMapped;
    }
    if (agent_.state != agent_protocol::State::kReleased) {
      agent_.state = agent_protocol::State::kOpen;
      agent_.joined = true;
    }
  }

  const agent_protocol::HelloReply& hello() const override { return hello_; }
  Result<agent_protocol::HelloReply> Status(std::chrono::milliseconds) override {
    return Do("Status", [&]() -> Result<agent_protocol::HelloReply> { return hello_; });
  }
  Result<std::vector<agent_protocol::Uuid>> Visible(std::chrono::milliseconds) override {
    std::lock_guard lock(program_.mutex);
    std::vector<agent_protocol::Uuid> gpus;
    for (const auto& gpu : agent_.visible) gpus.push_back(WireUuid(gpu));
    return gpus;
  }
  stasis::Status Close(std::chrono::milliseconds, Floor floor) override {
    return Do(floor == Floor::kKeep ? "Close keeping limits" : "Close",
              [&] { return Move(agent_protocol::State::kOpen, agent_protocol::State::kClosed); });
  }
  Result<bool> CloseInSteps(std::chrono::milliseconds, Floor) override {
    return Do("CloseInSteps", [&] { return Quiesce(); });
  }
  Result<bool> Rest(uint32_t calls, std::chrono::milliseconds) override {
    return Do("Rest " + std::to_string(calls), [&] {
      if (calls > 0 && agent_.state == agent_protocol::State::kClosed) agent_.busy_rounds = 0;
      return Quiesce();
    });
  }
  bool goes_in_steps() const override {
    std::lock_guard lock(program_.mutex);
    return agent_.steps;
  }
  const std::string& not_yet() const override { return not_yet_; }
  bool exports_running() const override { return true; }
  Result<agent_client::Export> ExportRunning(std::chrono::milliseconds) override {
    return Do("ExportRunning", [&]() -> Result<agent_client::Export> {
      if (agent_.state != agent_protocol::State::kOpen) {
        return Fail(Code::kFailedPrecondition, "not open");
      }
      agent_client::Export data = Memory();
      if (agent_.keeps_when_copied) agent_.KeepPieces(*agent_.keeps_when_copied);
      return data;
    });
  }
  Result<agent_client::Export> ExportAll(std::chrono::milliseconds) override {
    return Do("ExportAll", [&]() -> Result<agent_client::Export> {
      if (agent_.state != agent_protocol::State::kClosed) {
        return Fail(Code::kFailedPrecondition, "not closed");
      }
      return Memory();
    });
  }
  Result<std::vector<agent_protocol::Range>> Describe(std::chrono::milliseconds) override {
    return Do("Describe", [&]() -> Result<std::vector<agent_protocol::Range>> { return List(); });
  }
  stasis::Status Release(Hold, std::chrono::milliseconds) override {
    return Do("Release", [&]() -> stasis::Status {
      STASIS_TRY(Move(agent_protocol::State::kClosed, agent_protocol::State::kReleased));
      agent_.held = std::move(agent_.memory);
      agent_.memory.clear();
      agent_.joined = agent_.ipc_ranges == 0;
      return {};
    });
  }
  stasis::Status Commit(std::chrono::milliseconds) override {
    return Do("Commit", [&]() -> stasis::Status {
      agent_.held.clear();
      return {};
    });
  }
  stasis::Status Own(std::chrono::milliseconds) override {
    return Do("Own", [&]() -> stasis::Status {
      agent_.imported = false;
      return {};
    });
  }
  stasis::Status Map(const std::vector<agent_protocol::Range>& ranges, const std::vector<int>& fds,
                     std::chrono::milliseconds) override {
    return Do("Map", [&]() -> stasis::Status {
      if (ranges.size() != agent_.content.size() || fds.size() != ranges.size()) {
        return Fail(Code::kInternal, "not the exported list");
      }
      STASIS_TRY(Move(agent_protocol::State::kReleased, agent_protocol::State::kMapped));
      // An agent without descriptors of its own imports those of the client.
      agent_.imported = agent_.held.empty();
      agent_.held.clear();
      agent_.memory.clear();
      for (int fd : fds) agent_.memory.push_back(Duplicate(fd));
      return {};
    });
  }
  stasis::Status Rejoin(std::chrono::milliseconds) override {
    return Do("Rejoin", [&]() -> stasis::Status {
      agent_.joined = true;
      return {};
    });
  }
  stasis::Status Open(std::chrono::milliseconds) override {
    return Do("Open", [&]() -> stasis::Status {
      if (agent_.state == agent_protocol::State::kReleased) {
        return Fail(Code::kFailedPrecondition, "released");
      }
      agent_.state = agent_protocol::State::kOpen;
      return {};
    });
  }

 private:
  template <class Work>
  auto Do(const std::string& what, const Work& work) -> decltype(work()) {
    return log_.Run("agent " + std::to_string(process_.number), what, [&]() -> decltype(work()) {
      std::lock_guard lock(program_.mutex);
      if (!process::IsAlive(process_.id)) {
        return Fail(Code::kUnavailable, "the agent ended the connection");
      }
      auto result = work();
      Refresh();
      return result;
    });
  }
  stasis::Status Move(agent_protocol::State from, agent_protocol::State to) {
    if (agent_.state != from) return Fail(Code::kFailedPrecondition, "wrong state");
    agent_.state = to;
    return {};
  }
  Result<bool> Quiesce() {
    if (agent_.busy_rounds > 0) {
      --agent_.busy_rounds;
      agent_.state = agent_protocol::State::kShut;
      not_yet_ = "the program's work on the GPU did not end";
      return false;
    }
    agent_.state = agent_protocol::State::kClosed;
    return true;
  }
  agent_client::Export Memory() const {
    agent_client::Export data;
    data.ranges = List();
    for (const auto& fd : agent_.memory) data.fds.push_back(Duplicate(fd.get()));
    return data;
  }
  std::vector<agent_protocol::Range> List() const {
    std::vector<agent_protocol::Range> list;
    for (size_t i = 0; i < agent_.content.size(); ++i) {
      agent_protocol::Range range{};
      range.address = (i + 1) << 32;
      range.size_bytes = kPiece;
      range.device = WireUuid(agent_.gpus[i]);
      range.used_bytes = kPiece;
      list.push_back(range);
    }
    return list;
  }
  // Requires the program's mutex.
  void Refresh() {
    hello_ = agent_protocol::HelloReply{};
    hello_.state = agent_.state;
    hello_.range_count = static_cast<uint32_t>(agent_.content.size());
    hello_.range_bytes = agent_.content.size() * kPiece;
    hello_.blockers = agent_.blockers;
    std::strncpy(hello_.blocker_text, agent_.blocker_text.c_str(), sizeof hello_.blocker_text - 1);
    if (agent_.imported) {
      hello_.imported_ranges = hello_.range_count;
      hello_.imported_bytes = hello_.range_bytes;
    }
    hello_.driver.plain_bytes = agent_.driver_bytes;
    hello_.driver.managed_bytes = agent_.managed_bytes;
    hello_.ipc_name = IpcName(process_.number);
    hello_.ipc_ranges = agent_.ipc_ranges;
    hello_.ipc_peer_count = static_cast<uint32_t>(agent_.peers.size());
    for (size_t i = 0; i < agent_.peers.size(); ++i) hello_.ipc_peers[i] = agent_.peers[i];
    for (size_t i = 0; i < agent_.gpus.size(); ++i) {
      const agent_protocol::Uuid gpu = WireUuid(agent_.gpus[i]);
      uint32_t at = 0;
      while (at < hello_.device_count &&
             std::memcmp(&hello_.devices[at].uuid, &gpu, sizeof gpu) != 0) {
        ++at;
      }
      if (at == hello_.device_count) hello_.devices[hello_.device_count++].uuid = gpu;
      hello_.devices[at].ranges++;
      hello_.devices[at].range_bytes += kPiece;
    }
  }

  Program& program_;
  CallLog& log_;
  Process& process_;
  Agent& agent_;
  agent_protocol::HelloReply hello_{};
  std::string not_yet_;
};

class FakeAgents final : public agent_client::Agents {
 public:
  FakeAgents(Program& program, CallLog& log) : program_(program), log_(log) {}

  Result<std::unique_ptr<agent_client::AgentLink>> Connect(process::HostPid pid,
                                                           std::chrono::milliseconds) override {
    Process* process = nullptr;
    {
      std::lock_guard lock(program_.mutex);
      process = FindWithAgent(pid);
    }
    if (process == nullptr) return Fail(Code::kNotFound, "no agent");
    return log_.Run("agent " + std::to_string(process->number), "Connect",
                    [&]() -> Result<std::unique_ptr<agent_client::AgentLink>> {
                      std::lock_guard lock(program_.mutex);
                      if (process->agent->connected) {
                        return Fail(Code::kAborted, "the agent has a client");
                      }
                      process->agent->connected = true;
                      return std::make_unique<FakeAgentLink>(program_, log_, *process);
                    });
  }
  Result<agent_protocol::AgentHeader> ReadHeader(process::HostPid pid) override {
    std::lock_guard lock(program_.mutex);
    Process* process = FindWithAgent(pid);
    if (process == nullptr) return Fail(Code::kNotFound, "no agent");
    const Agent& agent = *process->agent;
    agent_protocol::AgentHeader header{};
    header.memory = agent_protocol::kSupported;
    if (agent.state == agent_protocol::State::kReleased) {
      header.memory |= agent_protocol::kMemoryAway;
    }
    if (agent.imported) header.memory |= agent_protocol::kMemoryImported;
    if (agent.ipc_ranges > 0 || !agent.peers.empty()) {
      header.memory |= agent_protocol::kMemoryShared;
    }
    return header;
  }

 private:
  // Requires the program's mutex.
  Process* FindWithAgent(process::HostPid pid) {
    Process* process = program_.Find(pid);
    const bool has_agent = process != nullptr && process->agent && process::IsAlive(process->id);
    return has_agent ? process : nullptr;
  }

  Program& program_;
  CallLog& log_;
};

}  // namespace stasis::fakes
