#include "api/arena_reserve.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "api/worker.h"
#include "base/log.h"
#include "base/operation_id.h"

namespace stasis::api {
namespace {

// More than any machine has, and little enough for sums. A user can change the answer of a worker.
constexpr uint64_t kMostReadyBytes = uint64_t{1} << 50;

}  // namespace

ArenaReserve::ArenaReserve(uint64_t most_bytes, StartWorker start)
    : most_bytes_(most_bytes == 0 ? std::numeric_limits<uint64_t>::max() : most_bytes),
      start_(std::move(start)) {}

void ArenaReserve::SetNeeds(const std::string& name, const v1::WorkerRequest& work,
                            v1::ReadyArenasRequest needs, uint64_t room_bytes) {
  std::unique_lock lock(mutex_);
  auto found = entries_.find(name);
  if (found == entries_.end() && needs.needs().empty()) return;
  Entry& entry = found == entries_.end() ? entries_[name] : found->second;
  const bool scarce =
      entry.ready_bytes > 0 && entry.ready_bytes + OthersReadyBytes(name) > room_bytes;
  const bool same = entry.needs.SerializeAsString() == needs.SerializeAsString();
  if (entry.started && same && (!scarce || entry.running)) return;
  entry.work = work;
  entry.needs = std::move(needs);
  entry.started = false;
  if (entry.running) return;  // Ended() starts the next one
  auto start = Prepare(name, entry);
  lock.unlock();
  start();
}

uint64_t ArenaReserve::ReadyBytes(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(name);
  return found == entries_.end() ? 0 : found->second.ready_bytes;
}

uint64_t ArenaReserve::OthersReadyBytes(const std::string& name) const {
  uint64_t bytes = 0;
  for (const auto& [other, entry] : entries_) {
    if (other != name) bytes = std::min(bytes + entry.ready_bytes, kMostReadyBytes);
  }
  return bytes;
}

// Returns a function that must be called without the lock.
std::function<void()> ArenaReserve::Prepare(const std::string& name, Entry& entry) {
  entry.started = entry.running = true;
  const uint64_t others = OthersReadyBytes(name);
  v1::ReadyArenasRequest request = entry.needs;
  request.set_most_bytes(most_bytes_ - std::min(most_bytes_, others));
  request.set_others_ready_bytes(others);
  v1::WorkerRequest work = entry.work;
  work.set_method("ReadyArenas");
  work.set_request(request.SerializeAsString());
  return [this, name, work = std::move(work)] {
    start_(work, [this, name](const Result<v1::ReadyArenasResponse>& response) {
      Ended(name, response);
    });
  };
}

void ArenaReserve::Ended(const std::string& name, const Result<v1::ReadyArenasResponse>& response) {
  if (!response || !response->problem().empty()) {
    log::Fields fields;
    if (response) {
      fields = {{"problem", response->problem()}};
    } else {
      fields = log::ErrorFields(response.error());
    }
    log::Write(log::Level::kInfo, "not all host memory for suspends was made ready", fields);
  }
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[name];
  entry.running = false;
  if (response) entry.ready_bytes = std::min(response->ready_bytes(), kMostReadyBytes);
  if (!entry.started) {
    auto start = Prepare(name, entry);
    lock.unlock();
    return start();
  }
  if (entry.needs.needs().empty() && entry.ready_bytes == 0) entries_.erase(name);
}

void StartReadyArenas(const v1::WorkerRequest& work,
                      const std::function<void(Result<v1::ReadyArenasResponse>)>& done) {
  v1::WorkerRequest request = work;
  request.set_operation(NewOperationId());
  auto worker = Worker::Start(
      request, [](const std::string&) {},
      [done](const Result<std::string>& reply, bool) {
        v1::ReadyArenasResponse response;
        if (!reply) {
          done(Fail(reply.error()));
        } else if (response.ParseFromString(*reply)) {
          done(std::move(response));
        } else {
          done(Fail(Code::kInternal, "the worker's answer cannot be read"));
        }
      });
  if (!worker) done(Fail(std::move(worker).error()));
}

}  // namespace stasis::api
