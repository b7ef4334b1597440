#include "dataplane/ring_feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <thread>

#include "dataplane/mover_protocol.h"

namespace stasis::dataplane {
namespace {

constexpr uint64_t kItem = LoadSource::kItemBytes;
constexpr uint64_t kPart = 64 << 10;  // bytes of each item that are used

// Item i has the bytes 'a' + i % 26, twice, and then zeros.
class Letters : public LoadSource {
 public:
  explicit Letters(size_t items) : items_(items) {}
  size_t items() const override { return items_; }
  Status Read(size_t item, char* buffer, std::vector<LoadPart>& parts) const override {
    if (item == broken) return Fail(Code::kDataLoss, "item " + std::to_string(item));
    std::memset(buffer, static_cast<int>('a' + item % 26), kPart);
    const uint64_t at = item * 3 * kPart;
    parts.push_back({at, kPart, 0, false});
    parts.push_back({at + kPart, kPart, 0, false});
    parts.push_back({at + 2 * kPart, kPart, 0, true});
    return {};
  }
  Status Check(std::vector<Id128>) const override { return {}; }

  size_t broken = ~size_t{0};

 private:
  const size_t items_;
};

Status Always() { return {}; }

// Copies like a mover: each batch as late as possible.
Result<std::string> CopyAll(const LoadSource& source, uint64_t ring_bytes, size_t most) {
  std::string ring(ring_bytes, 'x');
  std::string memory(source.items() * 3 * kPart, 'y');
  RingFeed feed(source, ring.data(), ring_bytes);
  std::deque<RingFeed::Batch> in_flight;
  for (bool all = false; !all || !in_flight.empty();) {
    if (!all) {
      STASIS_ASSIGN(RingFeed::Batch batch, feed.Next(most, Always));
      EXPECT_LE(batch.parts.size(), most);
      EXPECT_LE(batch.buffers.size(), ring_bytes / kItem / 4);
      all = batch.parts.empty();
      if (!all) in_flight.push_back(std::move(batch));
      if (!all && in_flight.size() < wire::kBatchesInFlight) continue;
      if (in_flight.empty()) break;
    }
    for (const LoadPart& part : in_flight.front().parts) {
      char* to = memory.data() + part.device_offset;
      if (part.zero) {
        std::memset(to, 0, part.bytes);
      } else {
        std::memcpy(to, ring.data() + part.buffer_offset, part.bytes);
      }
    }
    feed.Reuse(in_flight.front().buffers);
    in_flight.pop_front();
  }
  return memory;
}

std::string Expected(size_t items) {
  std::string memory;
  for (size_t i = 0; i < items; ++i) {
    memory += std::string(2 * kPart, static_cast<char>('a' + i % 26)) + std::string(kPart, '\0');
  }
  return memory;
}

TEST(RingFeed, EveryPartArrivesOnce) {
  for (const size_t items : {0, 1, 2, 100}) {
    for (const size_t most : {1, 2, 200}) {
      for (const uint64_t buffers : {4, 5, 16}) {
        SCOPED_TRACE(std::to_string(items) + " items, " + std::to_string(most) + " parts, " +
                     std::to_string(buffers) + " buffers");
        auto memory = CopyAll(Letters(items), buffers * kItem, most);
        ASSERT_TRUE(memory) << memory.error().ToString();
        EXPECT_TRUE(*memory == Expected(items));
      }
    }
  }
}

TEST(RingFeed, TheErrorOfAReadEndsIt) {
  Letters letters(100);
  letters.broken = 50;
  auto copied = CopyAll(letters, 4 * kItem, 200);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code, Code::kDataLoss);
  EXPECT_EQ(copied.error().message, "item 50");
}

TEST(RingFeed, ACallerCanEndItWhileItWaits) {
  Letters letters(10);
  std::string ring(4 * kItem, 'x');
  RingFeed feed(letters, ring.data(), ring.size());
  // Without Reuse, all buffers are in use at some time, and Next waits.
  int calls = 0;
  Status ended;
  for (int batch = 0; batch < 10 && ended; ++batch) {
    auto next = feed.Next(
        200, [&]() -> Status { return ++calls > 8 ? Fail(Code::kCancelled, "enough") : Status(); });
    if (!next) ended = Fail(next.error());
  }
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Code::kCancelled);
}

TEST(RingFeed, ARingHasAtLeastFourBuffersAndNoMoreThanNeeded) {
  constexpr uint64_t kMuch = 1ull << 40;
  EXPECT_EQ(RingFeed::RingBytes(1, kMuch), 4 * kItem);
  EXPECT_EQ(RingFeed::RingBytes(5 * kItem, kMuch), 5 * kItem);
  EXPECT_LE(RingFeed::RingBytes(kMuch, kMuch), 1024 * kItem);
}

TEST(RingFeed, ARingKeepsToALimitButNeverHasFewerThanFourBuffers) {
  EXPECT_EQ(RingFeed::RingBytes(100 * kItem, 6 * kItem + 1), 6 * kItem);
  EXPECT_EQ(RingFeed::RingBytes(100 * kItem, kItem), 4 * kItem);
  EXPECT_EQ(RingFeed::RingBytes(100 * kItem, 0), 4 * kItem);
}

}  // namespace
}  // namespace stasis::dataplane
