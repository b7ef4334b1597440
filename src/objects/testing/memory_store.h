// An ObjectStore in memory, for unit tests of code that uses the interface.
#pragma once

#include <functional>
#include <map>
#include <mutex>

#include "objects/object_store.h"

namespace stasis::objects::testing {

enum class Method : uint8_t { kPut, kGet, kList, kDelete };  // GetWhole() counts as kGet

class MemoryStore final : public ObjectStore {
 public:
  // Called before each method does anything, without a lock. An error is returned to the caller.
  // Tests use it to inject failures, or to run another actor between two steps.
  using Hook = std::function<Status(Method method, const std::string& key)>;
  void set_hook(Hook hook) { hook_ = std::move(hook); }
  // Get() delivers pieces of at most this size.
  void set_piece_bytes(size_t bytes) { piece_bytes_ = bytes; }
  // The next `count` transfers of Get() that are longer than `after_bytes` break off after that
  // many bytes and are retried.
  void BreakTransfers(int count, uint64_t after_bytes);

  Status Put(const std::string& key, std::span<const std::string_view> parts,
             const CallOptions& call = {}) override;
  Status Get(const std::string& key, uint64_t offset, uint64_t bytes, Sink& sink,
             const CallOptions& call = {}) override;
  Result<std::string> GetWhole(const std::string& key, uint64_t max_bytes,
                               const CallOptions& call = {}) override;
  Result<ListPage> List(const std::string& prefix, const std::string& start_after, uint32_t limit,
                        const CallOptions& call = {}) override;
  Status Delete(const std::string& key, const CallOptions& call = {}) override;
  Result<uint64_t> RemoveLeftovers(std::chrono::seconds older_than,
                                   const CallOptions& call = {}) override;
  Status CheckLists() const override { return lists_; }
  // Sets the result of CheckLists().
  void set_lists(Status status) { lists_ = std::move(status); }
  std::string Name() const override { return "memory"; }
  Counters counters() const override;

  // All objects, for assertions and for damaging one.
  std::map<std::string, std::string> Objects() const;
  void Overwrite(const std::string& key, std::string data);
  // Makes an object older or newer. Objects get the time of the last Put() or Overwrite().
  void SetTime(const std::string& key, int64_t put_unix_s);

 private:
  Status Begin(Method method, const std::string& key, const CallOptions& call);
  Result<std::string> Find(const std::string& key) const;
  // Returns how many bytes of this transfer to deliver before it breaks.
  uint64_t NextTransfer(uint64_t bytes);

  Hook hook_;
  Status lists_;
  size_t piece_bytes_ = 64 << 10;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> objects_;
  std::map<std::string, int64_t> times_;  // of objects, including deleted ones
  Counters counters_;
  int breaks_ = 0;
  uint64_t break_after_ = 0;
};

}  // namespace stasis::objects::testing
