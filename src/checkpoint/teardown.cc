#include "checkpoint/teardown.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "base/bounded.h"
#include "base/deadline.h"
#include "base/file.h"
#include "process/end.h"
#include "process/tree.h"
#include "store/store_folder.h"

namespace stasis::checkpoint {
namespace {

constexpr std::chrono::seconds kEndTimeout{10};
// A store in which a sweep makes no progress for this long is considered hung.
constexpr std::chrono::seconds kSweepStep{20};
// How long to wait for the lock on the image's hidden folders. The helper processes of a killed
// command hold the lock until they end, soon after the command. A lock that is held for longer may
// belong to another dump of the same name.
constexpr std::chrono::seconds kHelpersEnd{5};

}  // namespace

std::string WorkFolder(const Paths& paths, const process::ProcessId& owner) {
  return fmt::format("{}/work-{}-{}", paths.run, owner.pid.value, owner.start_time);
}

Result<std::string> SweepStoreOf(const std::string& image) {
  if (image.empty()) return std::string();
  const std::filesystem::path path(image);
  const std::string store = path.parent_path().string();
  auto await_helpers = [&](const NoteStep&) -> Result<std::string> {
    STASIS_TRY(store::AwaitPartialsOf(store, path.filename().string()));
    return std::string();
  };
  (void)AskBounded(await_helpers, Deadline::In(kHelpersEnd));  // the sweep skips what is in use
  auto sweep = [&](const NoteStep& note) -> Result<std::string> {
    note("search " + store + " for partial images");
    STASIS_TRY(store::SweepPartials(store, {},
                                    [&](const std::string& folder) { note("remove " + folder); }));
    return std::string();
  };
  BoundedOptions options;
  options.each_step = kSweepStep;
  auto swept = AskBounded(sweep, Deadline(), options);
  if (swept) return swept;
  // The undo must not fail because a store does not answer or no process can be started: the
  // program and later commands would be blocked.
  const Code code = swept.error().code;
  if (code != Code::kDeadlineExceeded && code != Code::kResourceExhausted) return swept;
  return fmt::format("a hidden folder may be left in {}: {}; `stasis image gc -d {}` removes it",
                     store, swept.error().message, store);
}

Status EndTree(const process::ProcessId& shim, const process::ProcessId& root) {
  Deadline deadline = Deadline::In(kEndTimeout);
  // Descendants may fork while they are killed, so this repeats until there are none. The shim is
  // killed last, because it reaps the other processes, whose pids are in use until then.
  for (const auto& top : {root, shim}) {
    while (top.pid.value != 0 && process::IsAlive(top) && !deadline.passed()) {
      auto tree = process::ReadTree(top.pid);
      if (!tree) break;
      std::vector<process::ProcessId> killed;
      for (auto it = tree->members.rbegin(); it != tree->members.rend(); ++it) {
        if (top == shim && it->id == shim && tree->members.size() > 1) continue;
        if (auto pidfd = process::OpenPidfd(it->id)) {
          ::syscall(SYS_pidfd_send_signal, pidfd->get(), SIGKILL, nullptr, 0);
          killed.push_back(it->id);
        }
      }
      for (const auto& id : killed) STASIS_TRY(process::WaitForEnd(id, deadline));
    }
  }
  for (const auto& top : {root, shim}) {
    if (top.pid.value != 0) STASIS_TRY(process::WaitForEnd(top, deadline));
    if (top.pid.value != 0 && process::IsAlive(top)) {
      return Fail(Code::kInternal, fmt::format("process {} could not be killed", top.pid.value));
    }
  }
  return {};
}

Status EndAll(const std::vector<process::ProcessId>& processes) {
  for (const auto& id : processes) {
    if (process::IsAlive(id)) STASIS_TRY(EndTree({}, id));
  }
  return {};
}

}  // namespace stasis::checkpoint
