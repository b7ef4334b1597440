// Finds the header and the control socket of the agent in a process.
#pragma once

#include "agent_protocol/protocol.h"
#include "base/bounded.h"
#include "base/deadline.h"
#include "base/result.h"
#include "process/memory.h"
#include "process/proc.h"

namespace stasis::agent_client {

// Reads and checks the header of the agent inside the process. Returns kNotFound if there is no
// agent, or if it has no control socket; kUnimplemented if it uses another protocol version;
// kDeadlineExceeded if the process's memory cannot be read in time.
Result<agent_protocol::AgentHeader> ReadAgentHeader(
    process::HostPid pid, const Deadline& = Deadline::In(process::kMemoryAnswer));

// Like ReadAgentHeader, but without a deadline. Must run inside AskBounded.
Result<agent_protocol::AgentHeader> ReadHeaderWithin(process::HostPid pid, const NoteStep& note);

// Gets the agent's control socket, sends `socket` over it and returns the header. Sends nothing and
// returns kUnimplemented if the header lacks one of the bits `features`. Must run inside
// AskBounded: the program may have replaced the control socket by any file, and even closing that
// file may block forever.
Result<agent_protocol::AgentHeader> SendSocketWithin(process::HostPid pid, int socket,
                                                     uint32_t features, const NoteStep& note);

// Gets the control socket and closes it again, to detect a file that blocks. Must run inside
// AskBounded.
Status ProbeControlSocketWithin(process::HostPid pid, const NoteStep& note);

// Converts a header to and from an answer of AskBounded.
std::string ToAnswer(const agent_protocol::AgentHeader& header);
Result<agent_protocol::AgentHeader> FromAnswer(const std::string& answer);

}  // namespace stasis::agent_client
