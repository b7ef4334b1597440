#include "checks/readable.h"

#include <fmt/format.h>

#include "agent_client/find.h"
#include "base/bounded.h"
#include "base/file.h"
#include "base/stat.h"

namespace stasis::checks {
namespace {

std::function<bool()> cancel_asked;

// Reads one process; runs in the child process.
using Reading = void (*)(const process::Stat& member, const NoteStep& note);

void ReadAgent(const process::Stat& member, const NoteStep& note) {
  (void)agent_client::ProbeControlSocketWithin(member.id.pid, [&](const std::string& step) {
    note(fmt::format("{} ({})", step, member.comm));
  });
}

void ReadState(const process::Stat& member, const NoteStep& note) {
  const process::HostPid pid = member.id.pid;
  note("read the command line of " + Describe(member));
  (void)ReadFile(fmt::format("/proc/{}/cmdline", pid.value));
  note("read the environment of " + Describe(member));
  (void)ReadFile(fmt::format("/proc/{}/environ", pid.value));
  auto names = ListDir(fmt::format("/proc/{}/fd", pid.value));
  if (!names) return;
  note("inspect the open files of " + Describe(member));
  for (const std::string& name : *names) {
    struct stat st;
    (void)StatWithoutSync(fmt::format("/proc/{}/fd/{}", pid.value, name), &st);
  }
}

Status Check(const std::vector<process::Stat>& members, Reading reading, const Deadline& deadline) {
  if (members.empty()) return {};
  auto read = [&](const NoteStep& note) -> Result<std::string> {
    for (const process::Stat& member : members) {
      if (process::IsAlive(member)) reading(member, note);
    }
    return std::string();
  };
  BoundedOptions options;
  options.cancelled = cancel_asked;
  auto answer = AskBounded(read, deadline, options);
  if (answer) return {};
  Error error = std::move(answer).error();
  if (error.code == Code::kCancelled) {
    error.hint = "Everything is as it was before.";
  } else if (error.code == Code::kDeadlineExceeded) {
    error.domain = Domain::kProcess;
    error.hint =
        "Everything is as it was before. The program itself, another program or a server supplies "
        "this memory or file (userfaultfd, FUSE, NFS) and does not answer. End or fix that "
        "supplier, then try again.";
  }
  return Fail(std::move(error));
}

}  // namespace

void CancelReadingWhen(std::function<bool()> cancelled) { cancel_asked = std::move(cancelled); }
const std::function<bool()>& ReadingCancelled() { return cancel_asked; }

Status CheckAgentReadable(const std::vector<process::Stat>& members, const Deadline& deadline) {
  return Check(members, ReadAgent, deadline);
}

Status CheckStateReadable(const std::vector<process::Stat>& members, const Deadline& deadline) {
  return Check(members, ReadState, deadline);
}

}  // namespace stasis::checks
