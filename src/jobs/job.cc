#include "jobs/job.h"

#include <algorithm>
#include <random>

#include "process/shared_server.h"
#include "process/tree.h"

namespace stasis::jobs {
namespace {

constexpr std::string_view kFirst[] = {
    "able",  "amber",  "ample",  "azure", "bold",   "brave",  "brief", "bright", "brisk",  "broad",
    "calm",  "clear",  "clever", "cool",  "coral",  "crisp",  "deep",  "eager",  "early",  "even",
    "fair",  "fast",   "fine",   "firm",  "fresh",  "gentle", "glad",  "golden", "grand",  "green",
    "happy", "honest", "ivory",  "jolly", "keen",   "kind",   "late",  "light",  "lively", "loyal",
    "lucky", "mellow", "merry",  "mild",  "neat",   "noble",  "plain", "proud",  "quick",  "quiet",
    "rapid", "ready",  "royal",  "sharp", "silver", "smooth", "solid", "steady", "still",  "swift",
    "tidy",  "warm",   "wise",   "young"};
constexpr std::string_view kSecond[] = {
    "acorn",  "alder",  "aspen",  "badger",  "beech",  "birch",  "bison",  "brook",
    "canyon", "cedar",  "cliff",  "cloud",   "comet",  "condor", "crane",  "creek",
    "delta",  "dove",   "dune",   "eagle",   "ember",  "falcon", "fern",   "finch",
    "fjord",  "forest", "fox",    "glade",   "harbor", "hare",   "hazel",  "heron",
    "hill",   "ibis",   "island", "kestrel", "lagoon", "lark",   "linden", "lynx",
    "maple",  "marten", "meadow", "moon",    "moss",   "oak",    "ocean",  "osprey",
    "otter",  "pine",   "plover", "raven",   "reef",   "ridge",  "river",  "robin",
    "spruce", "star",   "stone",  "swan",    "thrush", "tide",   "willow", "wren"};

// The process names of CRIU. For a job in its own pid namespace, CRIU is a descendant of the shim,
// which is the init process there. CRIU is not part of the job, so signals to the job must not
// reach it.
constexpr std::string_view kCriu[] = {"criu", "stasis-criu-ins"};

bool IsCriu(const process::Stat& stat) {
  return std::find(std::begin(kCriu), std::end(kCriu), stat.comm) != std::end(kCriu);
}

constexpr std::string_view kStates[] = {"starting", "running", "ending",   "exited",
                                        "dumped",   "lost",    "elsewhere"};

// Returns the rest of Job::dumped_image after `prefix`, or an empty string if the job was not
// dumped to such a place.
std::string PlaceAfter(std::string_view prefix, const Job& job) {
  const bool is_there =
      job.state == State::kDumped && job.dumped_image && job.dumped_image->starts_with(prefix);
  return is_there ? job.dumped_image->substr(prefix.size()) : std::string();
}

}  // namespace

std::string_view StateName(State state) { return kStates[static_cast<size_t>(state)]; }

std::optional<State> ParseState(std::string_view name) {
  const auto* at = std::find(std::begin(kStates), std::end(kStates), name);
  if (at == std::end(kStates)) return std::nullopt;
  return static_cast<State>(at - std::begin(kStates));
}

Status CheckHere(const Job& job) {
  if (job.state != State::kElsewhere || !job.processes) return {};
  const std::string& host = job.processes->host;
  return Fail(Code::kFailedPrecondition,
              "job " + job.id + " runs on " + host + ", not on this machine",
              "run the command on " + host + ". If " + host + " has failed, `stasis kill --lost " +
                  job.id + "` records that the job has ended");
}

std::string_view KindName(CheckpointKind kind) {
  return kind == CheckpointKind::kDump ? "dump" : "suspend";
}

std::vector<process::HostPid> BackgroundProcesses(const Job& job) {
  if (!job.processes || !job.has_shim) return {};
  const Processes& processes = *job.processes;
  auto all = process::ReadTree(processes.shim.pid);
  if (!all || all->root().id != processes.shim) return {};
  auto below_root = process::ReadTree(processes.root.pid);
  std::vector<process::HostPid> background;
  for (const process::Stat& stat : all->members) {
    bool counted = stat.id == processes.shim || stat.id == processes.root ||
                   (below_root && below_root->Contains(stat.id.pid));
    // A shared server started by the job's program also serves other jobs.
    if (process::IsAlive(stat) && !counted && !IsCriu(stat) &&
        !process::IsSharedServer(stat.id.pid)) {
      background.push_back(stat.id.pid);
    }
  }
  return background;
}

bool IsValidId(std::string_view id) {
  auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !id.empty() && id.size() <= kMaxIdLength && lower(id.front()) &&
         std::all_of(id.begin(), id.end(), [&](char c) {
           return lower(c) || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
         });
}

std::string GenerateId() {
  std::random_device random;
  auto pick = [&](const auto& words) { return std::string(words[random() % std::size(words)]); };
  return pick(kFirst) + "-" + pick(kSecond);
}

bool IsShareClass(std::string_view name) { return name == "interactive" || name == "batch"; }

std::string MovedTo(const Job& job) { return PlaceAfter(kMovedTo, job); }

std::string PerhapsMovedTo(const Job& job) { return PlaceAfter(kPerhapsMovedTo, job); }

}  // namespace stasis::jobs
