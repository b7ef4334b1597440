// A connection to an agent, and the errors of its packets. Shared by AgentClient and AgentWatch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "agent_protocol/packet.h"
#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::agent_client {

// The destructor disconnects and then waits, for at most 2 s, until the agent has closed its end
// too. CRIU cannot dump a program that has the socket still open, because the socket belongs to the
// network namespace of this process.
class Connection {
 public:
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}
  ~Connection() { Disconnect(); }
  Connection(Connection&&) = default;
  Connection& operator=(Connection&& other) noexcept;

  int get() const { return socket_.get(); }
  // Call this when the agent has accepted the connection. Otherwise the destructor does not wait,
  // because the agent keeps the sockets that it rejects.
  void Admit() { admitted_ = true; }

 private:
  void Disconnect();

  UniqueFd socket_;
  bool admitted_ = false;
};

// Finds the agent in the process and passes the socket to it. Returns the agent's header, or
// kUnimplemented if it lacks one of the bits `features`.
Result<agent_protocol::AgentHeader> PassSocket(process::HostPid pid, UniqueFd socket,
                                               uint32_t features,
                                               std::chrono::milliseconds timeout);

// "the agent in process 4711"
std::string NameOfAgent(process::HostPid pid);

// Converts a time limit for the functions of packet.h.
int Milliseconds(std::chrono::milliseconds span);

// Returns the error for a result other than kOk, and whether an error says that the agent has ended
// the connection.
Error IoError(agent_protocol::Io io);
bool WasEnded(const Error& error);

// Returns the reply's text with unprintable characters replaced.
std::string TextOf(const agent_protocol::Reply& reply);
// Converts an agent's reply.
Status FromReply(const agent_protocol::Reply& reply);

}  // namespace stasis::agent_client
