#include "process/thaw.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "process/control_group.h"
#include "process/end.h"

namespace stasis::process {
namespace {

// Version 1 of control groups has no event for a change of freezer.state.
constexpr int kPollFreezerMs = 100;

// The states of the freezers of a process's groups.
struct Freezers {
  bool frozen1 = false;  // in a hierarchy of version 1
  bool frozen2 = false;
  // The files cgroup.events of version 2. POLLPRI reports changes since frozen2 was read.
  std::vector<UniqueFd> events;
};

Freezers ReadFreezers(const std::vector<ControlGroup>& groups) {
  Freezers freezers;
  for (const ControlGroup& group : groups) {
    auto state = ReadFile(group.folder + "/freezer.state", 64);
    if (state && !state->starts_with("THAWED")) freezers.frozen1 = true;
    auto events = Open(group.folder + "/cgroup.events", O_RDONLY);
    if (!events) continue;
    char text[256];
    const ssize_t size = TEMP_FAILURE_RETRY(::read(events->get(), text, sizeof text));
    const std::string_view read(text, size > 0 ? static_cast<size_t>(size) : 0);
    if (read.find("frozen 1\n") != read.npos) freezers.frozen2 = true;
    freezers.events.push_back(std::move(*events));
  }
  return freezers;
}

}  // namespace

Status AwaitThawed(const ProcessId& id) {
  auto pidfd = OpenPidfd(id);
  if (!pidfd && pidfd.error().code == Code::kNotFound) return {};  // already ended
  if (!pidfd) return Fail(std::move(pidfd).error());
  for (;;) {
    auto groups = ControlGroups(id.pid);
    if (!groups || WasKilled(id)) return {};  // an ended process has no groups
    const Freezers freezers = ReadFreezers(*groups);
    if (!freezers.frozen1 && !freezers.frozen2) return {};
    std::vector<pollfd> waits = {{pidfd->get(), POLLIN, 0}};
    for (const UniqueFd& events : freezers.events) waits.push_back({events.get(), POLLPRI, 0});
    const int timeout = freezers.frozen1 ? kPollFreezerMs : -1;
    const int ready = TEMP_FAILURE_RETRY(::poll(waits.data(), waits.size(), timeout));
    if (ready < 0) return FailErrno(errno, "poll");
    if (waits.front().revents != 0) return {};
  }
}

}  // namespace stasis::process
