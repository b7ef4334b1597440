#include "bench/plain_objects.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "base/parallel.h"

namespace stasis::bench {
namespace {

constexpr unsigned kDeletesAtATime = 8;

// Copies an object to memory.
class MemorySink final : public objects::Sink {
 public:
  explicit MemorySink(char* to) : to_(to) {}

  Status Write(std::string_view part) override {
    std::memcpy(to_ + written_, part.data(), part.size());
    written_ += part.size();
    return {};
  }
  uint64_t Rewind() override { return written_; }

 private:
  char* const to_;
  uint64_t written_ = 0;
};

}  // namespace

template <class Memory>
Memory PlainObjects::PartOf(Memory memory, uint64_t object) const {
  const uint64_t begin = object * object_bytes_;
  return memory.subspan(begin, std::min(object_bytes_, size_bytes_ - begin));
}

// Returns the first error. Begins no transfer after it, but finishes those that have begun.
Status PlainObjects::ForEach(unsigned parallel,
                             const std::function<Status(uint64_t)>& transfer) const {
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  const auto worker = [&](size_t) -> Status {
    for (uint64_t i; !failed && (i = next++) < count();) {
      Status done = transfer(i);
      if (done) continue;
      failed = true;
      return done;
    }
    return {};
  };
  return InParallel(std::min<uint64_t>(parallel, count()), worker);
}

Status PlainObjects::Put(std::span<const char> memory, unsigned parallel,
                         const objects::CallOptions& call) {
  may_exist_ = true;
  return ForEach(parallel, [&](uint64_t i) -> Status {
    const auto part = PartOf(memory, i);
    const std::string_view parts[] = {{part.data(), part.size()}};
    return store_.Put(KeyOf(i), parts, call);
  });
}

Status PlainObjects::Get(std::span<char> memory, unsigned parallel,
                         const objects::CallOptions& call) {
  return ForEach(parallel, [&](uint64_t i) -> Status {
    const auto part = PartOf(memory, i);
    MemorySink sink(part.data());
    return store_.Get(KeyOf(i), 0, part.size(), sink, call);
  });
}

Status PlainObjects::Delete(const objects::CallOptions& call) {
  if (!may_exist_) return {};
  STASIS_TRY(ForEach(kDeletesAtATime, [&](uint64_t i) { return store_.Delete(KeyOf(i), call); }));
  may_exist_ = false;
  return {};
}

}  // namespace stasis::bench
