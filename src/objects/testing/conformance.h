// The tests that every ObjectStore passes. A test program that includes this file instantiates
// ObjectStoreTest with the stores that it has.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "objects/object_store.h"

namespace stasis::objects::testing {

using ::testing::ElementsAre;

// An empty store, and the server that it uses, which must outlive it.
struct StoreUnderTest {
  std::shared_ptr<void> server;
  std::shared_ptr<ObjectStore> store;
};

struct StoreKind {
  std::string name;
  std::function<StoreUnderTest()> open;
};

// Collects a range. Keeps whole units of `unit_bytes` when a transfer breaks off.
class CollectingSink : public Sink {
 public:
  explicit CollectingSink(uint64_t unit_bytes = 1) : unit_bytes_(unit_bytes) {}
  Status Write(std::string_view part) override {
    if (fail_with.code != Code::kOk) return Fail(fail_with);
    data += part;
    return {};
  }
  uint64_t Rewind() override {
    ++rewinds;
    data.resize(data.size() / unit_bytes_ * unit_bytes_);
    return data.size();
  }

  std::string data;
  int rewinds = 0;
  Error fail_with{Code::kOk};

 private:
  const uint64_t unit_bytes_;
};

// Returns pseudo-random bytes, so that a shifted or missing piece is noticed.
inline std::string Pattern(size_t bytes) {
  std::string data(bytes, '\0');
  uint32_t state = 1;
  for (char& c : data) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>(state >> 24);
  }
  return data;
}

inline Status PutText(ObjectStore& store, const std::string& key, std::string_view text) {
  return store.Put(key, {&text, 1});
}

inline std::vector<std::string> Keys(const ListPage& page) {
  std::vector<std::string> keys;
  for (const ObjectInfo& info : page.objects) keys.push_back(info.key);
  return keys;
}

#define EXPECT_SUCCESS(expr)                                        \
  do {                                                              \
    const auto status_ = (expr);                                    \
    EXPECT_TRUE(status_.has_value()) << status_.error().ToString(); \
  } while (0)

#define EXPECT_CODE(expr, expected)                                            \
  do {                                                                         \
    const auto status_ = (expr);                                               \
    ASSERT_FALSE(status_.has_value());                                         \
    EXPECT_EQ(status_.error().code, (expected)) << status_.error().ToString(); \
  } while (0)

class ObjectStoreTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    under_test_ = GetParam().open();
    ASSERT_TRUE(under_test_.store);
  }
  ObjectStore& store() { return *under_test_.store; }
  std::string Read(const std::string& key) {
    auto data = store().GetWhole(key, 64 << 20);
    return data ? *data : "error: " + data.error().ToString();
  }
  std::vector<std::string> List(const std::string& prefix) {
    auto page = store().List(prefix, "", kMaxListLimit);
    if (!page) return {"error: " + page.error().ToString()};
    return Keys(*page);
  }

 private:
  StoreUnderTest under_test_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ObjectStoreTest);

TEST_P(ObjectStoreTest, GivesBackWhatWasPut) {
  EXPECT_SUCCESS(PutText(store(), "a/b.c_d-E9", "some data"));
  EXPECT_EQ(Read("a/b.c_d-E9"), "some data");
}

TEST_P(ObjectStoreTest, ListsTheTimeOfAPut) {
  EXPECT_SUCCESS(PutText(store(), "a", "data"));
  const auto page = store().List("", "", 1);
  ASSERT_TRUE(page && page->objects.size() == 1 && page->objects[0].put_unix_s);
  EXPECT_NEAR(static_cast<double>(*page->objects[0].put_unix_s), NowMs() / 1000.0, 60);
}

TEST_P(ObjectStoreTest, JoinsParts) {
  const std::string large = Pattern(300'000);
  const std::vector<std::string_view> parts = {"head", "", large, "tail", ""};
  EXPECT_SUCCESS(store().Put("parts", parts));
  EXPECT_EQ(Read("parts"), "head" + large + "tail");
}

TEST_P(ObjectStoreTest, KeepsAnEmptyObject) {
  EXPECT_SUCCESS(store().Put("empty", {}));
  EXPECT_EQ(Read("empty"), "");
  EXPECT_THAT(List(""), ElementsAre("empty"));
}

TEST_P(ObjectStoreTest, ReplacesAnObject) {
  EXPECT_SUCCESS(PutText(store(), "key", "a long first version"));
  EXPECT_SUCCESS(PutText(store(), "key", "second"));
  EXPECT_EQ(Read("key"), "second");
}

TEST_P(ObjectStoreTest, GivesRanges) {
  const std::string data = Pattern(3'000'000);
  EXPECT_SUCCESS(PutText(store(), "range", data));
  struct Range {
    uint64_t offset, bytes;
  };
  for (const Range range : {Range{0, 1}, Range{0, 3'000'000}, Range{1'234'567, 1'500'000},
                            Range{2'999'999, 1}, Range{17, 0}, Range{3'000'000, 0}}) {
    CollectingSink sink;
    EXPECT_SUCCESS(store().Get("range", range.offset, range.bytes, sink));
    EXPECT_TRUE(sink.data == data.substr(range.offset, range.bytes)) << range.offset;
  }
}

TEST_P(ObjectStoreTest, RefusesARangeBeyondTheEnd) {
  EXPECT_SUCCESS(PutText(store(), "short", "12345"));
  struct Range {
    uint64_t offset, bytes;
  };
  for (const Range range : {Range{0, 6}, Range{5, 1}, Range{4, 2}, Range{6, 0},
                            Range{UINT64_MAX, 1}, Range{1, UINT64_MAX}}) {
    CollectingSink sink;
    EXPECT_CODE(store().Get("short", range.offset, range.bytes, sink), Code::kOutOfRange);
    EXPECT_EQ(sink.data, "");
  }
}

TEST_P(ObjectStoreTest, ReportsAMissingObject) {
  CollectingSink sink;
  EXPECT_CODE(store().Get("missing", 0, 1, sink), Code::kNotFound);
  EXPECT_CODE(store().Get("missing", 0, 0, sink), Code::kNotFound);
  EXPECT_CODE(store().GetWhole("missing", 100), Code::kNotFound);
  EXPECT_CODE(store().GetWhole("missing/deeper", 100), Code::kNotFound);
}

TEST_P(ObjectStoreTest, BoundsAWholeObject) {
  EXPECT_SUCCESS(PutText(store(), "five", "12345"));
  EXPECT_SUCCESS(store().GetWhole("five", 5));
  EXPECT_CODE(store().GetWhole("five", 4), Code::kOutOfRange);
}

TEST_P(ObjectStoreTest, ReturnsTheErrorOfASink) {
  EXPECT_SUCCESS(PutText(store(), "key", "data"));
  CollectingSink sink;
  sink.fail_with = Error{Code::kDataLoss, Domain::kImage, 0, "unit 3 is damaged"};
  const Status read = store().Get("key", 0, 4, sink);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kDataLoss);
  EXPECT_EQ(read.error().message, "unit 3 is damaged");
  EXPECT_EQ(sink.rewinds, 0);
}

TEST_P(ObjectStoreTest, ListsInTheOrderOfKeys) {
  // '-' and '.' sort before '/', '0' after it.
  for (const char* key : {"p/b/x", "p/b-y", "p/b.z", "p/b0", "p/a", "q", "p/B"}) {
    EXPECT_SUCCESS(PutText(store(), key, "12"));
  }
  EXPECT_THAT(List("p/"), ElementsAre("p/B", "p/a", "p/b-y", "p/b.z", "p/b/x", "p/b0"));
  EXPECT_THAT(List("p/b"), ElementsAre("p/b-y", "p/b.z", "p/b/x", "p/b0"));
  EXPECT_THAT(List("p/b/"), ElementsAre("p/b/x"));
  EXPECT_THAT(List("r"), ElementsAre());
  const auto page = store().List("q", "", 1);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->objects.front().bytes, 2u);
}

TEST_P(ObjectStoreTest, ListsInPages) {
  std::vector<std::string> all;
  for (int i = 10; i < 17; ++i) {
    all.push_back((i % 2 == 0 ? "l/x" : "l/") + std::to_string(i));
    EXPECT_SUCCESS(PutText(store(), all.back(), "1"));
  }
  std::sort(all.begin(), all.end());
  std::vector<std::string> seen;
  std::string last;
  for (int pages = 1;; ++pages) {
    const auto page = store().List("l/", last, 3);
    ASSERT_TRUE(page) << page.error().ToString();
    for (const std::string& key : Keys(*page)) seen.push_back(key);
    if (!page->more) break;
    ASSERT_EQ(page->objects.size(), 3u);
    ASSERT_LT(pages, 5);
    last = seen.back();
  }
  EXPECT_EQ(seen, all);
  // A page that ends at the last key does not set `more`, and a list that starts after this key is
  // empty.
  EXPECT_TRUE(store().List("l/", all.back(), 3)->objects.empty());
  EXPECT_FALSE(store().List("l/", "", 7)->more);
}

TEST_P(ObjectStoreTest, DeletesAnObject) {
  EXPECT_SUCCESS(PutText(store(), "d/a", "1"));
  EXPECT_SUCCESS(PutText(store(), "d/b", "2"));
  EXPECT_SUCCESS(store().Delete("d/a"));
  EXPECT_CODE(store().GetWhole("d/a", 10), Code::kNotFound);
  EXPECT_THAT(List("d/"), ElementsAre("d/b"));
  EXPECT_SUCCESS(store().Delete("d/a"));
  EXPECT_SUCCESS(store().Delete("never/was/there"));
}

TEST_P(ObjectStoreTest, RefusesBadKeys) {
  CollectingSink sink;
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
        std::string("a/../b"), std::string("a b"), std::string("~a"), std::string("\xc3\xa4"),
        std::string("a\0b", 3), std::string(513, 'a'), std::string(256, 'a')}) {
    EXPECT_CODE(PutText(store(), key, "x"), Code::kInvalidArgument);
    EXPECT_CODE(store().Get(key, 0, 1, sink), Code::kInvalidArgument);
    EXPECT_CODE(store().GetWhole(key, 1), Code::kInvalidArgument);
    EXPECT_CODE(store().Delete(key), Code::kInvalidArgument);
  }
  EXPECT_CODE(store().List("a//", "", 10), Code::kInvalidArgument);
  EXPECT_CODE(store().List("", "a/", 10), Code::kInvalidArgument);
  EXPECT_CODE(store().List("", "", 0), Code::kInvalidArgument);
  EXPECT_CODE(store().List("", "", 1001), Code::kInvalidArgument);
}

TEST_P(ObjectStoreTest, TakesTheLongestKey) {
  std::string key = std::string(255, 'a') + '/' + std::string(255, 'b') + "/";
  key = key.substr(0, 510) + "/c";
  EXPECT_SUCCESS(PutText(store(), key, "long"));
  EXPECT_EQ(Read(key), "long");
  EXPECT_THAT(List("a"), ElementsAre(key));
}

TEST_P(ObjectStoreTest, KeepsItsLimits) {
  EXPECT_SUCCESS(PutText(store(), "key", "data"));
  const std::string_view text = "other";
  std::stop_source stop;
  stop.request_stop();
  const CallOptions stopped{{}, stop.get_token()};
  const CallOptions late{Deadline::In(std::chrono::milliseconds(0)), {}};
  CollectingSink sink;
  EXPECT_CODE(store().Put("key", {&text, 1}, stopped), Code::kCancelled);
  EXPECT_CODE(store().Put("key", {&text, 1}, late), Code::kDeadlineExceeded);
  EXPECT_CODE(store().Get("key", 0, 4, sink, stopped), Code::kCancelled);
  EXPECT_CODE(store().Get("key", 0, 4, sink, late), Code::kDeadlineExceeded);
  EXPECT_CODE(store().GetWhole("key", 9, stopped), Code::kCancelled);
  EXPECT_CODE(store().List("", "", 9, late), Code::kDeadlineExceeded);
  EXPECT_CODE(store().Delete("key", late), Code::kDeadlineExceeded);
  EXPECT_EQ(Read("key"), "data");
}

TEST_P(ObjectStoreTest, WorksFromManyThreads) {
  constexpr int kThreads = 8;
  const std::string data = Pattern(200'000);
  std::vector<Error> errors(kThreads);
  {
    std::vector<Thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      auto thread = Thread::Start([&, i] {
        const std::string own = std::to_string(i) + data;
        CollectingSink sink;
        Status done = PutText(store(), "many/" + std::to_string(i), own);
        if (done) done = PutText(store(), "many/shared", data);
        if (done) done = store().Get("many/" + std::to_string(i), 0, own.size(), sink);
        if (!done) errors[i] = done.error();
        if (done && sink.data != own) errors[i].message = "wrong data";
      });
      ASSERT_TRUE(thread);
      threads.push_back(std::move(*thread));
    }
  }
  for (const Error& error : errors) EXPECT_EQ(error.message, "") << error.ToString();
  EXPECT_EQ(Read("many/shared"), data);
  EXPECT_EQ(List("many/").size(), kThreads + 1u);
}

TEST_P(ObjectStoreTest, HasNoLeftoversAfterSuccess) {
  EXPECT_SUCCESS(PutText(store(), "key", "data"));
  const auto removed = store().RemoveLeftovers(std::chrono::seconds(0));
  ASSERT_TRUE(removed) << removed.error().ToString();
  EXPECT_EQ(*removed, 0u);
  EXPECT_EQ(Read("key"), "data");
}

TEST_P(ObjectStoreTest, CountsItsWork) {
  EXPECT_SUCCESS(PutText(store(), "key", "12345"));
  CollectingSink sink;
  EXPECT_SUCCESS(store().Get("key", 1, 3, sink));
  const Counters counters = store().counters();
  EXPECT_EQ(counters.requests, 2u);
  EXPECT_EQ(counters.retries, 0u);
  EXPECT_EQ(counters.bytes_sent, 5u);
  EXPECT_EQ(counters.bytes_received, 3u);
}

}  // namespace stasis::objects::testing
