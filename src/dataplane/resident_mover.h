// A mover that stays between commands, warm: how it is found, started and sent away. Its socket has
// a name in a folder that only its user may enter:
//
//   DIR/UUID-BUILD.mover     one for each GPU and build of the mover
//   DIR/UUID-BUILD.lock      held while the name is made, until the mover answers
//
// What it means to be its client: mover_server.h.
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

// The name of a GPU's mover. kNotFound when there is no such program.
Result<std::string> ResidentPath(const std::string& dir, const device::GpuUuid& gpu,
                                 const std::string& program);

// One at work turns newcomers away at once, and one without work answers at once: who is not heard
// of for so long hangs (was stopped, for one), and may be ended.
constexpr std::chrono::seconds kResidentAnswer{5};

// One that runs already.
struct ResidentClient {
  UniqueFd socket;
  UniqueFd pidfd;
  pid_t pid = 0;
};
// kNotFound: nobody listens there. kAborted: it is at work for another client, or is not one to
// be trusted: another user's, or of another pid namespace.
Result<ResidentClient> ConnectResident(const std::string& path);

// A socket with that name, for a mover that is being started; the folder is made if need be.
// kAborted when one runs there by now. The lock is held until `lock` goes.
struct ResidentName {
  UniqueFd lock;
  UniqueFd socket;
};
Result<ResidentName> ClaimResidentName(const std::string& path);

// Called by the mover itself before it leaves. Whoever is making a name is not waited for: he may
// be waiting for us, and a name at which nobody listens is no obstacle.
void RemoveResidentName(const std::string& path);

// Sends away all movers of `dir` that have no client, of that GPU or of all, ends those that hang,
// and waits until their memory is free. How many.
Result<int> SendAwayResidents(const std::string& dir, const std::optional<device::GpuUuid>& gpu,
                              const Deadline& deadline);

}  // namespace stasis::dataplane
