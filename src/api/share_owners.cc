#include "api/share_owners.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/file.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/sha256.h"
#include "process/proc.h"

namespace stasis::api {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxFileBytes = 64u << 20;
// A job may need this long from the note to its record.
constexpr std::chrono::seconds kStartTime{60};

std::string Digest(const v1::CallContext::Folders& folders) {
  return HexOfBytes(View(Sha256(folders.SerializeAsString())).substr(0, 4));
}

std::string BootId() { return process::BootId().value_or(""); }

}  // namespace

ShareName SplitShareName(const std::string& id) {
  const size_t slash = id.find('/');
  if (slash == id.npos) return {};
  return {id.substr(0, slash), id.substr(slash + 1)};
}

std::string ShareOwnerKey(uid_t uid, const v1::CallContext::Folders& folders) {
  return fmt::format("{}-{}", uid, Digest(folders));
}

std::map<std::string, sharing::Saved> ShareOwners::Load() {
  std::lock_guard lock(mutex_);
  auto text = ReadFile(path_, kMaxFileBytes);
  v1::ShareState state;
  if (!text || !state.ParseFromString(*text)) {
    if (text || text.error().code != Code::kNotFound) {
      log::Write(log::Level::kWarn, "the state of shared GPUs cannot be read", {{"path", path_}});
    }
    return {};
  }
  // The folder of the socket may survive a reboot. The programs do not.
  if (state.boot_id() != BootId()) return {};
  for (const auto& stored : state.owners()) {
    ShareOwner owner;
    owner.work = stored.work();
    owner.caller.uid = owner.caller.account = stored.work().caller();
    if (stored.work().has_rights()) {
      owner.caller.uid = stored.work().rights().uid();
      owner.caller.gid = stored.work().rights().gid();
      const auto& groups = stored.work().rights().groups();
      owner.caller.groups.assign(groups.begin(), groups.end());
    }
    owner.caller.account = stored.account();
    const std::string entry =
        std::to_string(owner.caller.uid) + "\n" + Digest(owner.work.context().folders());
    entries_[entry] = {std::move(owner), "", Clock::now()};
  }
  for (const auto& program : state.programs()) {
    sharing::Saved& saved = saved_[program.id()];
    saved.pinned = program.pinned();
    saved.suspended_by_hand = program.by_hand();
    saved.swaps = program.swaps();
    saved.lost = std::chrono::duration_cast<sharing::Time>(
        std::chrono::duration<double>(std::clamp(program.lost_s(), 0.0, 1e9)));
  }
  return saved_;
}

void ShareOwners::SaveLocked() const {
  v1::ShareState state;
  state.set_boot_id(BootId());
  for (const auto& [name, entry] : entries_) {
    auto& owner = *state.add_owners();
    *owner.mutable_work() = entry.owner.work;
    owner.set_account(entry.owner.caller.account);
  }
  for (const auto& [id, saved] : saved_) {
    auto& program = *state.add_programs();
    program.set_id(id);
    program.set_pinned(saved.pinned);
    program.set_by_hand(saved.suspended_by_hand);
    program.set_swaps(saved.swaps);
    program.set_lost_s(std::chrono::duration<double>(saved.lost).count());
  }
  // Not synced: the programs do not survive a crash of the machine either.
  if (Status written = ReplaceFile(path_, state.SerializeAsString()); !written) {
    log::Write(log::Level::kWarn, "the state of shared GPUs cannot be saved",
               log::ErrorFields(written.error()));
  }
}

Status ShareOwners::Add(const Caller& caller, const v1::WorkerRequest& work) {
  std::lock_guard lock(mutex_);
  const std::string name = std::to_string(caller.uid) + "\n" + Digest(work.context().folders());
  const auto of_user = std::count_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry.second.owner.caller.uid == caller.uid;
  });
  auto found = entries_.find(name);
  if (found == entries_.end() &&
      (static_cast<size_t>(of_user) >= kMaxFoldersOfUser || entries_.size() >= kMaxOwners)) {
    return Fail(Code::kResourceExhausted,
                fmt::format("user {} shares GPUs from {} state folders, {} in total", caller.uid,
                            of_user, entries_.size()));
  }
  Entry& entry = entries_[name];
  entry.added = Clock::now();
  ShareOwner owner{caller, work};
  owner.work.clear_method();
  owner.work.clear_request();
  owner.work.clear_operation();
  owner.work.clear_control_groups();
  const bool changed = found == entries_.end() ||
                       entry.owner.work.SerializeAsString() != owner.work.SerializeAsString();
  entry.owner = std::move(owner);
  if (changed) SaveLocked();
  return {};
}

void ShareOwners::Forget(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(name);
  if (found == entries_.end() || Clock::now() - found->second.added < kStartTime) return;
  entries_.erase(found);
  SaveLocked();
}

void ShareOwners::SetSaved(const std::map<std::string, sharing::Saved>& saved) {
  std::lock_guard lock(mutex_);
  std::map<std::string, sharing::Saved> before = std::exchange(saved_, saved);
  for (const auto& [id, one] : before) {
    const bool kept = std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
      return entry.second.jobs.contains(id);
    });
    // A restored job is awake, so only the pin has a meaning.
    if (one.pinned && kept) saved_.try_emplace(id, sharing::Saved{.pinned = true});
  }
  SaveLocked();
}

void ShareOwners::SetJobs(const std::string& entry, std::set<std::string> jobs) {
  std::lock_guard lock(mutex_);
  if (auto found = entries_.find(entry); found != entries_.end()) {
    found->second.jobs = std::move(jobs);
  }
}

bool ShareOwners::IsPinned(const std::string& id) const {
  std::lock_guard lock(mutex_);
  auto found = saved_.find(id);
  return found != saved_.end() && found->second.pinned;
}

std::map<std::string, ShareOwner> ShareOwners::All() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, ShareOwner> all;
  for (const auto& [name, entry] : entries_) all[name] = entry.owner;
  return all;
}

bool ShareOwners::Resolve(const std::string& name, const std::string& key) {
  std::lock_guard lock(mutex_);
  for (const auto& [other, entry] : entries_) {
    if (other != name && entry.key == key) return false;
  }
  if (auto found = entries_.find(name); found != entries_.end()) found->second.key = key;
  return true;
}

std::string ShareOwners::KeyOf(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(name);
  return found == entries_.end() ? "" : found->second.key;
}

std::optional<ShareOwner> ShareOwners::Find(const std::string& key) const {
  std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_) {
    if (entry.key == key) return entry.owner;
  }
  return std::nullopt;
}

std::vector<std::string> ShareOwners::KeysOf(uid_t uid) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [name, entry] : entries_) {
    if (entry.owner.caller.uid == uid && !entry.key.empty()) keys.push_back(entry.key);
  }
  return keys;
}

}  // namespace stasis::api
