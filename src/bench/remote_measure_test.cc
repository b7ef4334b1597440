#include "bench/remote_measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/file.h"
#include "bench/noise.h"
#include "bench/remote_report.h"
#include "repository/images.h"
#include "repository/repository_testing.h"

namespace stasis::bench {
namespace {

using repository::testing::MakeContents;
using repository::testing::Method;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kSize = 6u << 20;
constexpr uint64_t kObject = 1u << 20;

class RemoteMeasureTest : public repository::testing::RepositoryTest {
 protected:
  RemoteMeasureTest() { before_ = MustPush("llama", MakeContents(1)).packs; }

  RemoteOptions Options(int rounds = 2) {
    RemoteOptions options{.repository = repository_,
                          .plain = objects_,
                          .repository_name = "fleet",
                          .store_path = store_.path(),
                          .names = names_};
    options.size_bytes = kSize;
    options.object_bytes = kObject;
    options.rounds = rounds;
    options.stop = stop_.get_token();
    return options;
  }
  // Expects the repository and the store to be as they were before the measurement.
  void ExpectNothingLeft() {
    EXPECT_THAT(Keys("check/"), IsEmpty());
    EXPECT_THAT(Keys("pending/"), IsEmpty());
    EXPECT_THAT(Keys("condemned/"), IsEmpty());
    EXPECT_THAT(Keys("images/"), ::testing::ElementsAre("images/llama"));
    EXPECT_EQ(Keys("packs/").size(), before_);
    EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
    ExpectPulls("llama", MakeContents(1));
  }

  repository::testing::TempStore store_;
  std::stop_source stop_;
  uint64_t before_ = 0;
};

TEST_F(RemoteMeasureTest, MovesTheSameBytesInEachTransfer) {
  std::atomic<uint64_t> plain_puts{0}, packs{0};
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method == Method::kPut && key.starts_with("check/")) ++plain_puts;
    if (method == Method::kPut && key.starts_with("packs/")) ++packs;
    return {};
  });
  const auto found = MeasureRemote(Options());
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->objects, 6u);
  ASSERT_EQ(found->rounds.size(), 2u);
  for (const RemoteRound& round : found->rounds) {
    EXPECT_GT(round.put_s, 0);
    EXPECT_GT(round.push_s, 0);
    EXPECT_GT(round.get_s, 0);
    EXPECT_GT(round.restore_s, 0);
    EXPECT_GT(round.push_requests, 4u);
  }
  // All objects are put once to open the connections, once for each of the two numbers of parallel
  // transfers that are tried, and once in each of the two rounds.
  EXPECT_EQ(plain_puts, 6u * (1 + 2 + 2));
  EXPECT_GE(packs, 2u) << "the second round found the memory of the first one";
  objects_.set_hook(nullptr);
  ExpectNothingLeft();
}

TEST_F(RemoteMeasureTest, LeavesTheGarbageOfOthers) {
  MustPush("gone", MakeContents(2));
  ASSERT_TRUE(repository::DeleteImage(repository_, "gone"));
  const auto before = Keys();
  const auto found = MeasureRemote(Options());
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(Keys(), before);
}

TEST_F(RemoteMeasureTest, AFailureLeavesNothing) {
  for (const char* prefix : {"check/", "packs/", "index/", "images/bench"}) {
    std::atomic<int> puts{0};
    objects_.set_hook([&](Method method, const std::string& key) -> Status {
      // The first plain objects are put before the rounds.
      if (method != Method::kPut || !key.starts_with(prefix) || ++puts != 1) return {};
      return Fail(Code::kUnavailable, "the server is gone");
    });
    const auto found = MeasureRemote(Options());
    ASSERT_FALSE(found) << prefix;
    EXPECT_THAT(found.error().ToString(), HasSubstr("the server is gone"));
    objects_.set_hook(nullptr);
    if (std::string(prefix) == "images/bench") MustCollectAll();  // its pending record
    ExpectNothingLeft();
  }
}

TEST_F(RemoteMeasureTest, ACancelledMeasurementLeavesNothing) {
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method == Method::kPut && key.starts_with("index/")) stop_.request_stop();
    return {};
  });
  const auto found = MeasureRemote(Options());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kCancelled) << found.error().ToString();
  objects_.set_hook(nullptr);
  ExpectNothingLeft();
}

TEST_F(RemoteMeasureTest, SaysWhatItCouldNotRemove) {
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method != Method::kDelete || !key.starts_with("images/")) return {};
    return Fail(Code::kPermissionDenied, "no deletions here");
  });
  const auto found = MeasureRemote(Options());
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().ToString(), HasSubstr("no deletions here"));
  EXPECT_THAT(found.error().hint, HasSubstr("stasis image delete bench-"));
  EXPECT_THAT(found.error().hint, HasSubstr("-R fleet"));
}

TEST_F(RemoteMeasureTest, NoticesDamage) {
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method == Method::kGet && key.starts_with("packs/")) {
      std::string data = objects_.Objects()[key];
      data[data.size() / 2] = static_cast<char>(data[data.size() / 2] ^ 1);
      objects_.Overwrite(key, data);
    }
    return {};
  });
  const auto found = MeasureRemote(Options());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kDataLoss) << found.error().ToString();
  objects_.set_hook(nullptr);
  EXPECT_THAT(Keys("check/"), IsEmpty());
  EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
}

TEST_F(RemoteMeasureTest, RefusesMoreThanTheMemoryOfTheMachine) {
  RemoteOptions options = Options();
  options.size_bytes = uint64_t{1} << 60;
  const auto found = MeasureRemote(options);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kResourceExhausted) << found.error().ToString();
}

TEST(Noise, IsRecognised) {
  std::string memory(40u << 20, '\0');
  FillNoise(memory, 7);
  EXPECT_TRUE(IsNoise(memory, 7));
  EXPECT_FALSE(IsNoise(memory, 8));
  memory[memory.size() - 1] = static_cast<char>(memory.back() ^ 1);
  EXPECT_FALSE(IsNoise(memory, 7));
}

TEST(RemoteReport, RatiosCompareRates) {
  RemoteMeasurements found;
  found.size_bytes = 1000;
  found.rounds = {{.put_s = 1, .push_s = 2, .get_s = 3, .restore_s = 3},
                  {.put_s = 2, .push_s = 2, .get_s = 3, .restore_s = 2},
                  {.put_s = 9, .push_s = 4, .get_s = 3, .restore_s = 9}};
  const RemoteReport report = MakeRemoteReport(found);
  EXPECT_EQ(report.put.median, 2);
  EXPECT_EQ(report.push.max, 4);
  ASSERT_EQ(report.ratios.size(), 2u);
  EXPECT_EQ(report.ratios[0].value, 1);
  EXPECT_TRUE(report.ratios[0].met());
  EXPECT_EQ(report.ratios[1].name, "restore_over_get");
  EXPECT_EQ(report.ratios[1].value, 1);
  const RemoteSubject plain{"fleet", "s3://bucket", false, "/images"};
  EXPECT_THAT(RemoteText(plain, found), ::testing::Not(HasSubstr("met")));
  EXPECT_EQ(RemoteJson(plain, found)["push"]["bytes_per_s"], 500);
}

}  // namespace
}  // namespace stasis::bench
