// The client side of the agent's protocol: finds the agent inside a process, sends requests, and
// checks that the answers are within bounds. agent_link.h describes the calls.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent_client/agent_link.h"
#include "agent_client/connection.h"
#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::agent_client {

class AgentClient final : public AgentLink {
 public:
  // Finds the agent and connects. Also returns kNotFound if the program has not used a GPU yet.
  // Returns kAborted if the agent already has a client.
  static Result<AgentClient> Find(process::HostPid pid, std::chrono::milliseconds timeout);

  // The second half of Find, after `socket` was passed to the agent. `who` names the agent in
  // errors.
  static Result<AgentClient> Greet(UniqueFd socket, std::string who,
                                   std::chrono::milliseconds timeout);

  AgentClient(AgentClient&&) = default;
  AgentClient& operator=(AgentClient&&) = default;

  const agent_protocol::HelloReply& hello() const override { return hello_; }
  Result<agent_protocol::HelloReply> Status(std::chrono::milliseconds timeout) override;

  Result<std::vector<agent_protocol::Uuid>> Visible(std::chrono::milliseconds timeout) override;

  stasis::Status Close(std::chrono::milliseconds timeout, Floor floor = Floor::kLower) override;
  Result<bool> CloseInSteps(std::chrono::milliseconds timeout,
                            Floor floor = Floor::kLower) override;
  Result<bool> Rest(uint32_t calls, std::chrono::milliseconds timeout) override;
  bool goes_in_steps() const override { return goes_in_steps_; }
  const std::string& not_yet() const override { return not_yet_; }
  Result<Export> ExportRunning(std::chrono::milliseconds timeout) override;
  bool exports_running() const override { return exports_running_; }
  Result<Export> ExportAll(std::chrono::milliseconds timeout) override;
  Result<std::vector<agent_protocol::Range>> Describe(std::chrono::milliseconds timeout) override;
  stasis::Status Release(Hold hold, std::chrono::milliseconds timeout) override;
  stasis::Status Commit(std::chrono::milliseconds timeout) override;
  stasis::Status Own(std::chrono::milliseconds timeout) override;
  stasis::Status Map(const std::vector<agent_protocol::Range>& ranges, const std::vector<int>& fds,
                     std::chrono::milliseconds timeout) override;
  stasis::Status Rejoin(std::chrono::milliseconds timeout) override;
  stasis::Status Open(std::chrono::milliseconds timeout) override;

 private:
  AgentClient(UniqueFd socket, std::string who)
      : socket_(std::move(socket)), who_(std::move(who)) {}
  Error Invalid() const;
  stasis::Status Ask(void* packet, agent_protocol::Type type, size_t length, const int* fds,
                     uint32_t count, std::chrono::milliseconds timeout);
  stasis::Status AskClose(uint32_t flags, std::chrono::milliseconds timeout, Floor floor);
  // Sends a request without arguments and waits for its reply.
  stasis::Status AskAndAwait(agent_protocol::Type type, std::chrono::milliseconds timeout);
  Result<agent_protocol::Reply> ReceiveReply(std::chrono::milliseconds timeout);
  stasis::Status AwaitReply(std::chrono::milliseconds timeout);
  Result<bool> AwaitRest(std::chrono::milliseconds timeout);
  Result<agent_protocol::HelloReply> AskHello(agent_protocol::Type type,
                                              std::chrono::milliseconds timeout);
  Result<Export> AskList(agent_protocol::Type request, agent_protocol::Type answer,
                         std::chrono::milliseconds timeout);
  Result<uint32_t> ReceivePacket(agent_protocol::Packet* packet, int* fds,
                                 std::chrono::milliseconds timeout);

  Connection socket_;
  std::string who_;  // "the agent in process 4711"
  agent_protocol::HelloReply hello_{};
  bool goes_in_steps_ = false;
  bool exports_running_ = false;
  bool tells_visible_ = false;
  bool shut_ = false;  // CloseInSteps has closed the gate, with this floor:
  Floor floor_ = Floor::kLower;
  std::string not_yet_;
};

}  // namespace stasis::agent_client
