// Kills the S3 server, a radosgw with its objects on a disk, at a random moment of pushes,
// streaming restores and gcs. No image may be lost. Each operation either succeeds after retries,
// if the server comes back at once, or fails with a message that names the repository, and can be
// repeated. One more gc then deletes everything that no image needs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "base/thread.h"
#include "objects/testing/radosgw.h"
#include "repository/encrypted_sealing.h"
#include "repository/layout.h"
#include "repository/repository_testing.h"
#include "repository/streamed_image.h"

namespace stasis::repository {
namespace {

using objects::s3::S3Store;
using objects::testing::Radosgw;
using testing::Contents;
using testing::NamesOf;
using testing::TempStore;

constexpr int kRounds = 30;
constexpr uint32_t kSeed = 1;
constexpr size_t kBlocks = 12'000;  // 94 MiB: two packs
constexpr uint64_t kBytesPerSecond = 48u << 20;
// How long an operation may continue after the kill if the server is not started again.
constexpr std::chrono::seconds kPatience{4};

// Kills the server after a delay. Runs in its own thread.
class Killer {
 public:
  // If `returns` is set, restarts the server at once; otherwise the destructor restarts it.
  Killer(const Radosgw& server, std::chrono::milliseconds delay, bool returns)
      : server_(server), delay_(delay), returns_(returns) {
    auto thread = Thread::Start([this] { Run(); });
    EXPECT_TRUE(thread);
    if (thread) thread_.emplace(std::move(*thread));
  }
  // Ends the delay: a server that has not been killed yet is killed now.
  ~Killer() {
    {
      std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    thread_.reset();
    if (!returns_) server_.Restart();
  }

 private:
  void Run() {
    {
      std::unique_lock lock(mutex_);
      over_.wait_for(lock, delay_, [this] { return is_over_; });
    }
    server_.Kill();
    if (returns_) server_.Restart();
  }

  const Radosgw& server_;
  const std::chrono::milliseconds delay_;
  const bool returns_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::optional<Thread> thread_;
};

class NightlyRadosgwKillTest : public ::testing::Test {
 protected:
  NightlyRadosgwKillTest() : server_("disk") {}

  void SetUp() override {
    ASSERT_TRUE(server_.runs());
    auto options = server_.Options();
    options.http.max_bytes_per_second = kBytesPerSecond;
    auto store = S3Store::Open("bucket", "repository", options);
    ASSERT_TRUE(store);
    objects_ = std::move(*store);
    auto info = CreateRepository(*objects_, true, "");
    ASSERT_TRUE(info) << info.error().ToString();
    repository_.emplace(*objects_, *info, *sealing_);
    Write("base", 0);
    ASSERT_TRUE(TryPush("base", Deadline()));
    images_.insert("base");
  }

  // Makes a local image whose units no other image has.
  void Write(const std::string& name, uint32_t seed) {
    contents_[name] = testing::MakeContents(seed, kBlocks);
    testing::WriteImage(local_.path(), name, contents_[name], names_);
  }
  Status TryPush(const std::string& name, const Deadline& deadline) {
    STASIS_ASSIGN(const auto image, store::ImageReader::Open(local_ / name));
    PushOptions options = testing::PushWith(names_);
    options.deadline = deadline;
    STASIS_TRY(Push(*repository_, *image, name, options));
    return {};
  }
  Status TryRestore(const std::string& name, const Deadline& deadline) {
    TempStore store;
    Status done = StreamInto(store, name, deadline);
    EXPECT_THAT(*ListDir(store.path()), ::testing::IsEmpty());
    return done;
  }
  Status StreamInto(const TempStore& store, const std::string& name, const Deadline& deadline) {
    PullOptions options;
    options.names = &names_;
    options.deadline = deadline;
    STASIS_ASSIGN(const auto image, StreamedImage::Open(*repository_, name, store.path(), options));
    std::string memory(contents_[name].gpu.size(), 'x');
    const size_t ranges[] = {0};
    const store::RangeOutput outputs[] = {{memory.data()}};
    const auto placed = [](const store::UnitJobs::Place&, uint64_t) -> Status { return {}; };
    const auto go_on = [&] { return !deadline.passed(); };
    STASIS_TRY(image->ranges()->Read(ranges, outputs, placed, go_on));
    EXPECT_TRUE(memory == contents_[name].gpu);
    return {};
  }
  Status TryCollect(const Deadline& deadline) {
    GcOptions options;
    options.deadline = deadline;
    // No other process uses the repository, so each record of another push or gc is abandoned.
    options.abandoned = std::chrono::seconds(-1);
    STASIS_TRY(CollectGarbage(*repository_, options));
    return {};
  }

  using Operation = std::function<Status(const Deadline&)>;
  // Runs an operation, kills the server while it runs, and repeats the operation if it failed.
  void Disturb(const std::string& what, unsigned max_delay_ms, const Operation& operation) {
    const bool returns = random_() % 2 == 0;
    const auto delay = std::chrono::milliseconds(random_() % max_delay_ms);
    SCOPED_TRACE(what + " after " + std::to_string(delay.count()) + " ms, server " +
                 (returns ? "returns" : "stays away"));
    Status done;
    {
      const Killer killer(server_, delay, returns);
      done = operation(returns ? Deadline() : Deadline::In(delay + kPatience));
    }
    ++(done ? completed_ : failed_);
    if (done) return;
    EXPECT_FALSE(returns) << done.error().ToString();
    EXPECT_THAT(done.error().code,
                ::testing::AnyOf(Code::kUnavailable, Code::kDeadlineExceeded, Code::kCancelled))
        << done.error().ToString();
    EXPECT_THAT(done.error().ToString(), ::testing::HasSubstr("bucket/repository"));
    const Status again = operation(Deadline());
    EXPECT_TRUE(again) << again.error().ToString();
  }
  void ExpectImages() {
    const auto listed = ListImages(*repository_);
    ASSERT_TRUE(listed) << listed.error().ToString();
    std::set<std::string> names;
    for (const ImageSummary& image : *listed) names.insert(image.name);
    EXPECT_EQ(names, images_);
    for (const std::string& name : images_) {
      VerifyOptions options;
      options.reads_units = false;
      const auto verified = VerifyImage(*repository_, name, options);
      ASSERT_TRUE(verified) << verified.error().ToString();
      EXPECT_THAT(verified->findings, ::testing::IsEmpty()) << name;
    }
  }
  // Expects that images need every pack, and that there are no records of pushes and gcs.
  void ExpectNoGarbage() {
    std::set<std::string> needed, there;
    for (const std::string& name : images_) {
      const auto record = repository_->ReadImage(name, {});
      ASSERT_TRUE(record) << record.error().ToString();
      needed.insert(ImageKey(name));
      for (const PackId& pack : record->packs) {
        needed.insert({PackKey(pack), PlaceKey(pack.push), NamesKey(pack.push)});
      }
    }
    needed.insert("repo");
    const auto objects = repository_->List("", {});
    ASSERT_TRUE(objects) << objects.error().ToString();
    for (const auto& object : *objects) there.insert(object.key);
    EXPECT_EQ(there, needed);
  }

  std::mt19937 random_{kSeed};
  const Radosgw server_;
  const std::unique_ptr<Sealing> sealing_ = EncryptedSealing(*MasterKey::Random());
  const store::UnitNames names_ = NamesOf(1);
  std::unique_ptr<S3Store> objects_;
  std::optional<Repository> repository_;
  TempStore local_;
  std::map<std::string, Contents> contents_;  // of local images
  std::set<std::string> images_;              // in the repository
  int completed_ = 0, failed_ = 0;
};

TEST_F(NightlyRadosgwKillTest, NoImageIsLost) {
  std::string latest;
  for (int round = 1; round <= kRounds && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + ", seed " + std::to_string(kSeed));
    switch (round % 3) {
      case 1: {
        if (!latest.empty()) {
          ASSERT_TRUE(RemoveTree(local_ / latest));
        }
        contents_.erase(latest);
        latest = "image" + std::to_string(round);
        Write(latest, static_cast<uint32_t>(round));
        Disturb("push", 2500, [&](const Deadline& deadline) { return TryPush(latest, deadline); });
        images_.insert(latest);
        break;
      }
      case 2:
        Disturb("restore", 2500, [&](const Deadline& deadline) {
          return TryRestore(round % 2 == 0 ? latest : "base", deadline);
        });
        break;
      default:
        ASSERT_TRUE(DeleteImage(*repository_, latest));
        images_.erase(latest);
        Disturb("gc", 200, [&](const Deadline& deadline) { return TryCollect(deadline); });
    }
    ExpectImages();
  }
  ASSERT_TRUE(TryCollect(Deadline()));
  ExpectNoGarbage();
  EXPECT_TRUE(TryRestore("base", Deadline()));
  EXPECT_GT(completed_, 0);
  EXPECT_GT(failed_, 0);
}

}  // namespace
}  // namespace stasis::repository
