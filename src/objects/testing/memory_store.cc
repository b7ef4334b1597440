#include "objects/testing/memory_store.h"

#include <algorithm>

#include "base/clock.h"
#include "objects/object_key.h"

namespace stasis::objects::testing {
namespace {

Error NoObject(const std::string& key) {
  return Error{Code::kNotFound, Domain::kStasis, 0, "memory has no object " + key};
}

}  // namespace

void MemoryStore::BreakTransfers(int count, uint64_t after_bytes) {
  const std::lock_guard lock(mutex_);
  breaks_ = count;
  break_after_ = after_bytes;
}

Status MemoryStore::Begin(Method method, const std::string& key, const CallOptions& call) {
  if (method != Method::kList) STASIS_TRY(CheckKey(key));
  if (call.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
  if (call.deadline.passed()) return Fail(Code::kDeadlineExceeded, "the deadline has passed");
  if (hook_) STASIS_TRY(hook_(method, key));
  const std::lock_guard lock(mutex_);
  ++counters_.requests;
  return {};
}

Status MemoryStore::Put(const std::string& key, std::span<const std::string_view> parts,
                        const CallOptions& call) {
  STASIS_TRY(Begin(Method::kPut, key, call));
  std::string data;
  for (std::string_view part : parts) data += part;
  const std::lock_guard lock(mutex_);
  counters_.bytes_sent += data.size();
  objects_[key] = std::move(data);
  times_[key] = NowMs() / 1000;
  return {};
}

Result<std::string> MemoryStore::Find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return Fail(NoObject(key));
  return found->second;
}

uint64_t MemoryStore::NextTransfer(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (breaks_ == 0 || bytes <= break_after_) return bytes;
  --breaks_;
  ++counters_.retries;
  return break_after_;
}

Status MemoryStore::Get(const std::string& key, uint64_t offset, uint64_t bytes, Sink& sink,
                        const CallOptions& call) {
  STASIS_TRY(Begin(Method::kGet, key, call));
  STASIS_ASSIGN(const std::string data, Find(key));
  if (bytes > data.size() || offset > data.size() - bytes) {
    return Fail(Code::kOutOfRange, "object " + key + " is shorter than the requested range");
  }
  uint64_t done = 0;
  for (;;) {
    const uint64_t end = done + NextTransfer(bytes - done);
    while (done < end) {
      const uint64_t piece = std::min<uint64_t>(piece_bytes_, end - done);
      STASIS_TRY(sink.Write(std::string_view(data).substr(offset + done, piece)));
      done += piece;
    }
    if (done == bytes) break;
    const uint64_t valid = sink.Rewind();
    if (valid > done) return Fail(Code::kInternal, "a sink keeps more bytes than it was given");
    done = valid;
  }
  const std::lock_guard lock(mutex_);
  counters_.bytes_received += bytes;
  return {};
}

Result<std::string> MemoryStore::GetWhole(const std::string& key, uint64_t max_bytes,
                                          const CallOptions& call) {
  STASIS_TRY(Begin(Method::kGet, key, call));
  STASIS_ASSIGN(std::string data, Find(key));
  if (data.size() > max_bytes) {
    return Fail(Code::kOutOfRange,
                "object " + key + " has more than " + std::to_string(max_bytes) + " bytes");
  }
  return data;
}

Result<ListPage> MemoryStore::List(const std::string& prefix, const std::string& start_after,
                                   uint32_t limit, const CallOptions& call) {
  STASIS_TRY(CheckListing(prefix, start_after, limit));
  STASIS_TRY(Begin(Method::kList, prefix, call));
  const std::lock_guard lock(mutex_);
  ListPage page;
  for (auto at = objects_.lower_bound(prefix); at != objects_.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    if (at->first <= start_after) continue;
    if (page.objects.size() == limit) {
      page.more = true;
      break;
    }
    page.objects.push_back({at->first, at->second.size(), times_[at->first]});
  }
  return page;
}

Status MemoryStore::Delete(const std::string& key, const CallOptions& call) {
  STASIS_TRY(Begin(Method::kDelete, key, call));
  const std::lock_guard lock(mutex_);
  objects_.erase(key);
  return {};
}

Result<uint64_t> MemoryStore::RemoveLeftovers(std::chrono::seconds, const CallOptions&) {
  return 0;
}

Counters MemoryStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::map<std::string, std::string> MemoryStore::Objects() const {
  const std::lock_guard lock(mutex_);
  return objects_;
}

void MemoryStore::Overwrite(const std::string& key, std::string data) {
  const std::lock_guard lock(mutex_);
  objects_[key] = std::move(data);
  times_[key] = NowMs() / 1000;
}

void MemoryStore::SetTime(const std::string& key, int64_t put_unix_s) {
  const std::lock_guard lock(mutex_);
  times_[key] = put_unix_s;
}

}  // namespace stasis::objects::testing
