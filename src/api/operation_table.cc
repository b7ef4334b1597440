#include "api/operation_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/methods.h"
#include "api/utf8.h"
#include "base/clock.h"
#include "base/operation_id.h"

namespace stasis::api {
namespace {

constexpr std::chrono::seconds kAnswerTimeout{5};

}  // namespace

Result<std::string> OperationTable::Begin(const Caller& caller, const std::string& method,
                                          bool operation, const std::string& target) {
  std::lock_guard lock(mutex_);
  if (operation && draining_) {
    return Fail(Code::kUnavailable, "the daemon is being drained and begins no new operations",
                "try again after its restart, or use --no-daemon");
  }
  STASIS_TRY(CheckLimits(caller, /*hold=*/false));
  Entry entry;
  entry.caller = caller;
  entry.operation.set_verb(VerbOf(method));
  entry.operation.set_target(Utf8(target.substr(0, 4096)));
  entry.is_operation = operation;
  return Add(std::move(entry));
}

Result<std::string> OperationTable::BeginHold(const Caller& caller) {
  std::lock_guard lock(mutex_);
  STASIS_TRY(CheckLimits(caller, /*hold=*/true));
  Entry entry;
  entry.caller = caller;
  entry.operation.set_verb(VerbOf("HoldShare"));
  entry.is_hold = true;
  return Add(std::move(entry));
}

Status OperationTable::CheckLimits(const Caller& caller, bool hold) const {
  size_t all = 0, of_user = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.is_hold != hold) continue;
    ++all;
    of_user += entry.caller.account == caller.account ? 1 : 0;
  }
  const size_t most = IsPrivileged(caller) ? kMaxCalls : kMaxCalls - kReservedCalls;
  if (of_user < kMaxCallsOfUser && all < most) return {};
  return Fail(
      Code::kResourceExhausted,
      fmt::format("too many {} in progress: {} of user {}, {} in total",
                  hold ? "commands without the daemon" : "calls", of_user, caller.account, all),
      "try again when some of them have ended");
}

std::string OperationTable::Add(Entry entry) {
  std::string id = NewOperationId();
  while (entries_.contains(id)) id = NewOperationId();
  entry.operation.set_id(id);
  entry.operation.set_uid(entry.caller.uid);
  entry.operation.set_begun_ms(NowMs());
  entries_.emplace(id, std::move(entry));
  return id;
}

void OperationTable::SetWorker(const std::string& id, const std::shared_ptr<Worker>& worker) {
  std::lock_guard lock(mutex_);
  auto entry = entries_.find(id);
  if (entry == entries_.end()) return;  // the call has already ended
  if (entry->second.finished) return;
  entry->second.worker = worker;
  if (entry->second.operation.cancelled()) worker->Cancel();
}

void OperationTable::SetPhase(const std::string& id, const std::string& phase) {
  std::lock_guard lock(mutex_);
  auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  entry->second.operation.set_phase(phase);
}

void OperationTable::Finish(const std::string& id) {
  std::lock_guard lock(mutex_);
  auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  entry->second.finished = true;
  entry->second.worker.reset();
  ended_.notify_all();
}

void OperationTable::End(const std::string& id) {
  std::lock_guard lock(mutex_);
  entries_.erase(id);
  ended_.notify_all();
}

std::vector<v1::Operation> OperationTable::List(const Caller& caller) const {
  std::lock_guard lock(mutex_);
  std::vector<v1::Operation> list;
  for (const auto& [id, entry] : entries_) {
    if (entry.under_way() && MayManage(caller, entry.operation.uid()))
      list.push_back(entry.operation);
  }
  return list;
}

Status OperationTable::Cancel(const Caller& caller, const std::string& id) {
  std::shared_ptr<Worker> worker;
  {
    std::lock_guard lock(mutex_);
    auto entry = entries_.find(id);
    if (entry == entries_.end() || !entry->second.under_way() ||
        !MayManage(caller, entry->second.operation.uid())) {
      return Fail(Code::kNotFound, "there is no operation " + Utf8(id.substr(0, 64)),
                  "the operation may have ended");
    }
    entry->second.operation.set_cancelled(true);
    worker = entry->second.worker;
  }
  // If the worker has not started yet, SetWorker() cancels it.
  if (worker != nullptr) worker->Cancel();
  return {};
}

size_t OperationTable::CountLocked() const {
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), [](const auto& entry) {
    return entry.second.under_way();
  }));
}

size_t OperationTable::count() const {
  std::lock_guard lock(mutex_);
  return CountLocked();
}

bool OperationTable::HasCalls(const Caller& caller) const {
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& entry) { return entry.second.caller == caller; });
}

std::map<std::string, size_t> OperationTable::CountByVerb() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, size_t> counts;
  for (const auto& [id, entry] : entries_) {
    if (entry.under_way()) ++counts[entry.operation.verb()];
  }
  return counts;
}

Status OperationTable::Drain(const Deadline& deadline) {
  {
    std::lock_guard lock(mutex_);
    draining_ = true;
  }
  if (on_drain_) on_drain_();
  std::unique_lock lock(mutex_);
  auto done = [&] { return CountLocked() == 0; };
  bool drained = true;
  if (deadline.never()) {
    ended_.wait(lock, done);
  } else {
    drained = ended_.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeout()), done);
  }
  if (drained) {
    // Give waiting clients time to receive their results.
    ended_.wait_for(lock, kAnswerTimeout, [&] {
      return std::none_of(entries_.begin(), entries_.end(),
                          [](const auto& entry) { return entry.second.is_operation; });
    });
    return {};
  }
  return Fail(Code::kDeadlineExceeded,
              fmt::format("operations still in progress: {}", CountLocked()),
              "they continue and no new ones begin; drain again to wait for them");
}

bool OperationTable::draining() const {
  std::lock_guard lock(mutex_);
  return draining_;
}

}  // namespace stasis::api
