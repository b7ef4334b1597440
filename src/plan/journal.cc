#include "plan/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/json_bytes.h"
#include "base/operation_id.h"
#include "process/host_name.h"

namespace stasis::plan {
namespace {

using nlohmann::json;
using process::ProcessId;

constexpr int kVersion = 1;
constexpr size_t kMaxEntryBytes = 16u << 20;
constexpr int kMaxDepth = 16;  // maximum nesting in a line
constexpr const char* kSuffix = ".journal";
constexpr const char* kTemporarySuffix = ".new";

json ToJson(const ProcessId& id) { return {{"pid", id.pid.value}, {"start_time", id.start_time}}; }

json ToJson(const std::vector<ProcessId>& ids) {
  json all = json::array();
  for (const auto& id : ids) all.push_back(ToJson(id));
  return all;
}

ProcessId ProcessIdFrom(const json& j) {
  return {{j.at("pid").get<pid_t>()}, j.at("start_time").get<uint64_t>()};
}

std::string BytesFrom(const json& j, const char* name) {
  auto bytes = DecodeBytes(j.at(name));
  if (!bytes) throw std::runtime_error(std::string(name) + " is not text");
  return *bytes;
}

json ToJson(const Operation& op) {
  json processes = json::array();
  for (const auto& p : op.device_processes) {
    json j = ToJson(p.id);
    j["initial"] = static_cast<int>(p.initial);
    j["gpus"] = json::array();
    for (const auto& gpu : p.gpus) j["gpus"].push_back(gpu.value);
    j["device_bytes"] = p.device_bytes;
    j["map"] = json::array();
    for (const auto& [from, to] : p.map) j["map"].push_back({from.value, to.value});
    j["context_kept"] = p.context_kept;
    j["away_bytes"] = p.away_bytes;
    processes.push_back(std::move(j));
  }
  return {{"version", kVersion},
          {"verb", op.verb},
          {"target", EncodeBytes(op.target)},
          {"boot_id", op.boot_id},
          {"host", EncodeBytes(op.host)},
          {"pid_namespace", op.pid_namespace},
          {"owner", ToJson(op.owner)},
          {"members", ToJson(op.members)},
          {"device_processes", processes},
          {"image", EncodeBytes(op.image)},
          {"restored_shim", ToJson(op.restored_shim)},
          {"restored_root", ToJson(op.restored_root)},
          {"job", EncodeBytes(op.job)},
          {"leave_running", op.leave_running},
          {"operation", op.id}};
}

Operation OperationFrom(const json& j) {
  if (j.at("version").get<int>() != kVersion) {
    throw std::runtime_error("it has the unknown version " + j.at("version").dump());
  }
  Operation op;
  op.verb = j.at("verb").get<std::string>();
  op.target = BytesFrom(j, "target");
  op.boot_id = j.at("boot_id").get<std::string>();
  if (j.contains("host")) op.host = BytesFrom(j, "host");
  op.pid_namespace = j.value("pid_namespace", uint64_t{0});
  op.owner = ProcessIdFrom(j.at("owner"));
  for (const auto& m : j.at("members")) op.members.push_back(ProcessIdFrom(m));
  for (const auto& p : j.at("device_processes")) {
    int state = p.at("initial").get<int>();
    if (state < 0 || state > static_cast<int>(device::ProcessState::kFailed)) {
      throw std::runtime_error("it has the unknown process state " + std::to_string(state));
    }
    RecordedProcess process{ProcessIdFrom(p), static_cast<device::ProcessState>(state), {}};
    for (const auto& gpu : p.value("gpus", json::array()))
      process.gpus.push_back({gpu.get<std::string>()});
    process.device_bytes = p.value("device_bytes", uint64_t{0});
    for (const auto& pair : p.value("map", json::array())) {
      process.map.push_back({{pair.at(0).get<std::string>()}, {pair.at(1).get<std::string>()}});
    }
    process.context_kept = p.value("context_kept", false);
    process.away_bytes = p.value("away_bytes", uint64_t{0});
    op.device_processes.push_back(std::move(process));
  }
  op.image = BytesFrom(j, "image");
  op.restored_shim = ProcessIdFrom(j.at("restored_shim"));
  op.restored_root = ProcessIdFrom(j.at("restored_root"));
  op.job = BytesFrom(j, "job");
  op.leave_running = j.at("leave_running").get<bool>();
  op.id = j.value("operation", "");
  for (const auto& s : j.value("stopped", json::array())) op.stopped.push_back(ProcessIdFrom(s));
  // A value that only a later version knows counts as "perhaps".
  const int elsewhere = j.value("elsewhere", 0);
  op.elsewhere = elsewhere == 0   ? Elsewhere::kNo
                 : elsewhere == 2 ? Elsewhere::kYes
                                  : Elsewhere::kPerhaps;
  return op;
}

// Limits the nesting, because the library copies, merges and prints recursively, and a deep line
// would overflow the stack.
json ParseLine(const std::string& line) {
  return json::parse(line, [](int depth, json::parse_event_t, const json&) {
    if (depth > kMaxDepth) throw std::runtime_error("it is nested too deeply");
    return true;
  });
}

// Parses the lines of an entry and merges its notes over the header. Catches all exceptions of
// nlohmann::json.
Result<Operation> ParseEntry(const std::string& text) {
  try {
    std::istringstream lines(text);
    json header;
    std::vector<std::string> begun, ended;
    bool committed = false;
    for (std::string line; std::getline(lines, line);) {
      if (lines.eof()) break;  // no newline: a torn line
      json j = ParseLine(line);
      if (header.is_null()) {
        header = j;
      } else if (j.contains("note")) {
        header.merge_patch(j.at("note"));
      } else if (j.contains("committed")) {
        committed = true;
      } else if (j.value("at", "") == "begin") {
        begun.push_back(j.at("phase").get<std::string>());
      } else if (j.value("at", "") == "end") {
        ended.push_back(j.at("phase").get<std::string>());
      }
    }
    if (header.is_null()) throw std::runtime_error("it is empty");
    Operation op = OperationFrom(header);
    op.phases_begun = std::move(begun);
    op.phases_ended = std::move(ended);
    op.committed = committed;
    return op;
  } catch (const std::exception& error) {
    return Fail(Code::kDataLoss, error.what());
  }
}

// Locks the folder for a short time, to create or list entries.
Result<UniqueFd> LockFolder(const Paths& paths) {
  STASIS_ASSIGN(UniqueFd dir, Open(paths.journal(), O_RDONLY | O_DIRECTORY));
  if (::flock(dir.get(), LOCK_EX) != 0) return FailErrno(errno, "lock " + paths.journal());
  return dir;
}

std::vector<ProcessId> AllProcesses(const Operation& op) {
  std::vector<ProcessId> all = op.members;
  for (const auto& id : {op.restored_root, op.restored_shim}) {
    if (id.pid.value != 0) all.push_back(id);
  }
  return all;
}

// Returns true if the operation belongs to another machine, and not to an earlier boot of this one.
bool IsOfOtherHost(const Operation& operation, const std::string& boot) {
  return operation.boot_id != boot && !operation.host.empty() &&
         operation.host != process::HostName();
}

// Returns true if the operation's pids belong to another machine or pid namespace and mean nothing
// here. An operation of an earlier boot is never foreign: all its processes have ended.
Result<bool> IsForeign(const Operation& operation) {
  STASIS_ASSIGN(std::string boot, process::BootId());
  if (IsOfOtherHost(operation, boot)) return true;
  if (operation.pid_namespace == 0) return false;
  STASIS_ASSIGN(uint64_t ours, process::ReadNamespace({::getpid()}, "pid"));
  return operation.boot_id == boot && operation.pid_namespace != ours;
}

bool Overlaps(const Operation& a, const Operation& b) {
  if (!a.job.empty() && a.job == b.job) return true;
  if (a.pid_namespace != 0 && b.pid_namespace != 0 && a.pid_namespace != b.pid_namespace)
    return false;
  auto ids = AllProcesses(b);
  for (const auto& id : AllProcesses(a)) {
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) return true;
  }
  return false;
}

Result<std::vector<std::string>> EntryPaths(const Paths& paths) {
  STASIS_ASSIGN(auto names, ListDir(paths.journal()));
  std::vector<std::string> entries;
  for (const auto& name : names) {
    if (name.ends_with(kSuffix)) entries.push_back(paths.journal() + "/" + name);
  }
  return entries;
}

bool StillLinked(int fd) {
  struct stat st;
  return ::fstat(fd, &st) == 0 && st.st_nlink > 0;
}

// Removes files that killed commands left: those that are unlocked and still have a temporary name.
void SweepTemporaries(const Paths& paths) {
  auto folder = LockFolder(paths);
  auto names = ListDir(paths.journal());
  if (!folder || !names) return;
  for (const auto& name : *names) {
    if (!name.ends_with(kTemporarySuffix)) continue;
    auto fd = Open(paths.journal() + "/" + name, O_RDONLY);
    if (fd && TryLock(fd->get())) ::unlink((paths.journal() + "/" + name).c_str());
  }
}

enum class Left { kRefuse, kIgnore };

// Fails if another entry names the job or a process of `operation`. With kRefuse, entries of killed
// commands count too. `own` is the path of the caller's entry, which is skipped.
Status RefuseOverlap(const Paths& paths, const Operation& operation, Left left,
                     const std::string& own = {}) {
  STASIS_ASSIGN(const std::string boot, process::BootId());
  STASIS_ASSIGN(auto entries, EntryPaths(paths));
  for (const auto& path : entries) {
    if (path == own) continue;
    auto fd = Open(path, O_RDONLY);
    auto text = ReadFile(path, kMaxEntryBytes);
    if (!fd || !text) continue;  // finished meanwhile
    auto other = ParseEntry(*text);
    if (!other) continue;
    const bool elsewhere = IsOfOtherHost(*other, boot);
    if (elsewhere ? other->job.empty() || other->job != operation.job
                  : !Overlaps(*other, operation)) {
      continue;
    }
    if (TryLock(fd->get())) {
      // Only its own machine can recover it.
      if (elsewhere) continue;
      if (left == Left::kIgnore || !StillLinked(fd->get())) continue;
      return Fail(Code::kFailedPrecondition,
                  "an earlier " + other->verb + " of " + other->target + " was interrupted",
                  "`stasis recover` finishes or undoes it");
    }
    return Fail(Code::kAborted,
                "a " + other->verb + " of " + other->target + " is under way (process " +
                    ToString(other->owner.pid) + (elsewhere ? " of " + other->host : "") + ")",
                "wait for it to end");
  }
  return {};
}

}  // namespace

Result<Journal> Journal::Prepare(const Paths& paths, const std::string& verb) {
  STASIS_ASSIGN(process::Stat self, process::ReadStat({::getpid()}));
  std::string stem = paths.journal() + "/" + verb + "-" + ToString(self.id.pid) + "-" +
                     std::to_string(self.id.start_time);
  std::string temporary = stem + kTemporarySuffix;
  STASIS_ASSIGN(UniqueFd folder, LockFolder(paths));  // against SweepTemporaries
  STASIS_ASSIGN(UniqueFd fd, Open(temporary, O_RDWR | O_CREAT | O_EXCL | O_APPEND, 0600));
  if (!TryLock(fd.get())) return FailErrno(errno, "lock " + temporary);
  return Journal(paths, verb, std::move(temporary), stem + kSuffix, std::move(fd));
}

Journal::~Journal() {
  if (fd_ && !begun_) ::unlink(temporary_.empty() ? path_.c_str() : temporary_.c_str());
}

Status Journal::Claim(const Operation& operation) {
  return Enter(operation, /*refuse_left=*/false);
}

Status Journal::Begin(const Operation& operation) {
  STASIS_TRY(Enter(operation, /*refuse_left=*/true));
  begun_ = true;
  return {};
}

Status Journal::Enter(const Operation& operation, bool refuse_left) {
  assert(fd_ && !begun_);
  STASIS_ASSIGN(UniqueFd folder, LockFolder(paths_));
  Operation here = operation;
  here.verb = verb_;
  here.id = OperationId();
  here.host = process::HostName();
  STASIS_ASSIGN(here.pid_namespace, process::ReadNamespace({::getpid()}, "pid"));
  STASIS_TRY(RefuseOverlap(paths_, here, refuse_left ? Left::kRefuse : Left::kIgnore, path_));
  if (temporary_.empty()) return Append(json{{"note", ToJson(here)}}.dump());
  STASIS_TRY(Append(ToJson(here).dump()));
  // Rename the entry after the write and the lock, so that an entry with its final name is complete
  // and locked.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return FailErrno(errno, "rename " + temporary_);
  temporary_.clear();
  return {};
}

Status Journal::Append(const std::string& line) {
  assert(fd_ && line.find('\n') == std::string::npos);
  return Annotate(WriteAll(fd_.get(), line + "\n"), "write the journal " + path_);
}

Status Journal::PhaseBegins(const std::string& phase) {
  assert(begun_);
  return Append(json{{"phase", phase}, {"at", "begin"}}.dump());
}
Status Journal::PhaseEnded(const std::string& phase) {
  return Append(json{{"phase", phase}, {"at", "end"}}.dump());
}
Status Journal::Commit() {
  assert(begun_);
  return Append(json{{"committed", true}}.dump());
}

Status Journal::NoteMembers(const std::vector<ProcessId>& members) {
  return Append(json{{"note", {{"members", ToJson(members)}}}}.dump());
}

Status Journal::NoteElsewhere(Elsewhere elsewhere) {
  return Append(json{{"note", {{"elsewhere", static_cast<int>(elsewhere)}}}}.dump());
}

Status Journal::NoteStopped(const std::vector<ProcessId>& stopped) {
  return Append(json{{"note", {{"stopped", ToJson(stopped)}}}}.dump());
}

Status Journal::NoteRestored(const ProcessId& shim, const ProcessId& root) {
  return Append(
      json{{"note", {{"restored_shim", ToJson(shim)}, {"restored_root", ToJson(root)}}}}.dump());
}

Status Journal::Finish() {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path_);
  fd_.Reset();
  return {};
}

Result<std::vector<JournalEntry>> ScanJournal(const Paths& paths, const Deadline& wait) {
  SweepTemporaries(paths);
  STASIS_ASSIGN(auto entries, EntryPaths(paths));
  std::vector<JournalEntry> found;
  for (const auto& path : entries) {
    auto fd = Open(path, O_RDWR | O_APPEND);
    if (!fd) continue;  // finished meanwhile
    JournalEntry entry;
    entry.path = path;
    auto text = ReadFile(path, kMaxEntryBytes);
    auto operation = text ? ParseEntry(*text) : Result<Operation>(Fail(text.error()));
    entry.readable = operation.has_value();
    if (operation) {
      entry.operation = std::move(*operation);
    } else {
      entry.problem = operation.error().message;
    }
    STASIS_ASSIGN(entry.foreign, IsForeign(entry.operation));
    if (entry.foreign) {
      found.push_back(std::move(entry));
      continue;
    }
    bool locked = TryLock(fd->get());
    if (!locked && entry.readable && !process::IsAlive(entry.operation.owner)) {
      const Status waited = LockUntil(fd->get(), wait);
      if (!waited && waited.error().code != Code::kDeadlineExceeded) return Fail(waited.error());
      locked = waited.has_value();
    }
    if (locked) {
      if (!StillLinked(fd->get())) continue;
      entry.lock = std::move(*fd);
      // Read the entry again: helpers may have written more notes to it before they exited.
      if (auto again = ReadFile(path, kMaxEntryBytes)) {
        if (auto parsed = ParseEntry(*again)) entry.operation = std::move(*parsed);
      }
    }
    found.push_back(std::move(entry));
  }
  return found;
}

Status CheckNotUnderWay(const Paths& paths, const ProcessId& id) {
  STASIS_ASSIGN(UniqueFd folder, LockFolder(paths));
  Operation operation;
  STASIS_ASSIGN(operation.pid_namespace, process::ReadNamespace({::getpid()}, "pid"));
  operation.members = {id};
  return RefuseOverlap(paths, operation, Left::kIgnore);
}

Status CheckJobNotUnderWay(const Paths& paths, const std::string& job) {
  STASIS_ASSIGN(UniqueFd folder, LockFolder(paths));
  Operation operation;
  operation.job = job;
  return RefuseOverlap(paths, operation, Left::kIgnore);
}

Result<size_t> TakeOverEntries(const Paths& paths, const std::string& job) {
  STASIS_ASSIGN(const std::string boot, process::BootId());
  STASIS_ASSIGN(auto entries, EntryPaths(paths));
  size_t taken = 0;
  for (const auto& path : entries) {
    auto fd = Open(path, O_RDWR | O_APPEND);
    if (!fd || !TryLock(fd->get()) || !StillLinked(fd->get())) continue;
    auto text = ReadFile(path, kMaxEntryBytes);
    auto operation = text ? ParseEntry(*text) : Result<Operation>(Fail(text.error()));
    if (!operation || operation->job != job || !IsOfOtherHost(*operation, boot)) continue;
    // Removes a torn line, because this one would continue it.
    const size_t whole = text->rfind('\n') + 1;
    if (whole < text->size() && ::ftruncate(fd->get(), static_cast<off_t>(whole)) != 0) {
      return FailErrno(errno, "truncate " + path);
    }
    const std::string note = json{{"note", {{"host", ""}}}}.dump() + "\n";
    STASIS_TRY(Annotate(WriteAll(fd->get(), note), "write the journal " + path));
    ++taken;
  }
  return taken;
}

Status RemoveEntry(const JournalEntry& entry) {
  if (::unlink(entry.path.c_str()) != 0 && errno != ENOENT)
    return FailErrno(errno, "remove " + entry.path);
  return {};
}

}  // namespace stasis::plan
