// A resident mover stays between commands with its context and registered memory. This file finds,
// starts and stops it. Its socket has a name in a directory that only its user may enter:
//
//   DIR/UUID-BUILD.mover     one for each GPU and build of the mover
//   DIR/UUID-BUILD.lock      held from the creation of the name until the mover answers
//
// mover_server.h describes how clients are served.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "device/device_control.h"

namespace stasis::dataplane {

// Returns the socket path of a GPU's mover. Returns kNotFound if the program does not exist.
Result<std::string> ResidentPath(const std::string& dir, const device::GpuUuid& gpu,
                                 const std::string& program);

// Time limit for a first answer. A busy mover disconnects a new client at once and an idle one
// answers at once, so a mover that does not answer within this time is hung (stopped, for example)
// and may be killed.
constexpr std::chrono::seconds kResidentAnswer{5};

// A connection to a running mover.
struct ResidentClient {
  UniqueFd socket;
  UniqueFd pidfd;
  pid_t pid = 0;
};
// Returns kNotFound if no mover listens there. Returns kAborted if it serves another client, or is
// not trusted because it belongs to another user or pid namespace.
Result<ResidentClient> ConnectResident(const std::string& path);

// A bound socket for a mover that is being started. The directory is created if needed. kAborted
// means that a mover runs there by now. The name's lock is held until `lock` is destroyed.
struct ResidentName {
  UniqueFd lock;
  UniqueFd socket;
};
// Creates the name for a new mover.
Result<ResidentName> ClaimResidentName(const std::string& path);

// Called by the mover before it exits. Does not wait for the lock: its holder may be waiting for
// this mover, and a stale name is harmless.
void RemoveResidentName(const std::string& path);

// Asks a mover without another client to exit, kills a hung one, and waits until its memory is
// free. Returns false if it serves another client, kDeadlineExceeded if it does not exit.
Result<bool> SendAway(const ResidentClient& client, const Deadline& deadline);

// Does the same for all movers in `dir`, of one GPU or of all. Returns the number of movers
// stopped.
Result<int> SendAwayResidents(const std::string& dir, const std::optional<device::GpuUuid>& gpu,
                              const Deadline& deadline);

}  // namespace stasis::dataplane
