// Runs pushes, deletions and gcs at the same time and kills each of them before or after a random
// request. No image may be lost. One more gc must then delete everything that no image needs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <set>

#include "base/parallel.h"
#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using objects::CallOptions;
using objects::Counters;
using objects::ListPage;
using testing::Contents;
using testing::MakeContents;
using testing::MemoryStore;
using testing::NamesOf;
using testing::TempStore;

// Admits one request at a time, chosen at random among all that wait.
class Gate {
 public:
  explicit Gate(uint32_t seed) : random_(seed) {}

  void Enter() {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = next_++;
    waiting_.push_back(ticket);
    if (!is_busy_) Admit();
    admitted_changed_.wait(lock, [&] { return admitted_ == ticket; });
  }
  void Leave() {
    std::lock_guard lock(mutex_);
    Admit();
  }

 private:
  void Admit() {
    is_busy_ = !waiting_.empty();
    if (!is_busy_) return;
    const size_t index = random_() % waiting_.size();
    admitted_ = waiting_[index];
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
    admitted_changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable admitted_changed_;
  std::mt19937 random_;
  std::vector<uint64_t> waiting_;
  uint64_t next_ = 1;
  uint64_t admitted_ = 0;
  bool is_busy_ = false;
};

// The object store as seen by one process, which is killed at its request number `lives`. That
// request may still reach the store, but returns an error. Later requests do not reach the store.
class MortalStore final : public objects::ObjectStore {
 public:
  MortalStore(MemoryStore& store, Gate& gate, std::optional<unsigned> lives)
      : store_(store), gate_(gate), lives_(lives) {}

  Status Put(const std::string& key, std::span<const std::string_view> parts,
             const CallOptions& call) override {
    return Request<Status>([&] { return store_.Put(key, parts, call); });
  }
  Status Get(const std::string& key, uint64_t offset, uint64_t bytes, objects::Sink& sink,
             const CallOptions& call) override {
    return Request<Status>([&] { return store_.Get(key, offset, bytes, sink, call); });
  }
  Result<std::string> GetWhole(const std::string& key, uint64_t max_bytes,
                               const CallOptions& call) override {
    return Request<Result<std::string>>([&] { return store_.GetWhole(key, max_bytes, call); });
  }
  Result<ListPage> List(const std::string& prefix, const std::string& start_after, uint32_t,
                        const CallOptions& call) override {
    // Pages are short, so that other processes run between the requests for them.
    return Request<Result<ListPage>>([&] { return store_.List(prefix, start_after, 3, call); });
  }
  Status Delete(const std::string& key, const CallOptions& call) override {
    return Request<Status>([&] { return store_.Delete(key, call); });
  }
  Result<uint64_t> RemoveLeftovers(std::chrono::seconds, const CallOptions&) override { return 0; }
  std::string Name() const override { return "memory"; }
  Counters counters() const override { return {}; }

 private:
  template <class R, class F>
  R Request(const F& request) {
    gate_.Enter();
    const unsigned number = requests_++;  // guarded by the gate
    R result = Fail(Code::kUnavailable, "the process was killed");
    if (!lives_ || number < *lives_) {
      result = request();
    } else if (number == *lives_ && number % 2 == 0) {
      (void)request();
    }
    gate_.Leave();
    return result;
  }

  MemoryStore& store_;
  Gate& gate_;
  const std::optional<unsigned> lives_;
  unsigned requests_ = 0;
};

class KillTest : public ::testing::Test {
 protected:
  static constexpr size_t kSources = 4;
  static constexpr size_t kPushes = 3;
  static constexpr size_t kGcs = 2;
  static constexpr size_t kRounds = 3;

  // Local images that share most of their memory.
  void SetUp() override {
    for (uint32_t i = 0; i < kSources; ++i) {
      Contents contents = MakeContents(1, 4, 3);
      contents.gpu.replace(0, testing::kTestBlock, testing::Noise(testing::kTestBlock, 1000 + i));
      contents.files.erase("agent/00ff.so");
      if (i >= 2) contents.gpu.resize(2 * testing::kTestBlock);
      contents_.push_back(contents);
      paths_.push_back(WriteImage(local_.path(), "image" + std::to_string(i), contents, names_));
    }
  }

  std::optional<unsigned> Lives(unsigned most) {
    if (random_() % 2 == 0) return std::nullopt;
    return random_() % most;
  }

  struct Image {
    size_t source;
    bool must_exist = false;  // its push has succeeded, and it was not deleted
  };

  void Run(uint32_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    MemoryStore objects;
    const Repository repository = testing::MustCreate(objects, *sealing_);
    std::map<std::string, Image> images;
    for (size_t round = 0; round < kRounds && !HasFailure(); ++round) {
      RunRound(objects, repository, images, round);
      ExpectIntact(repository, images);
    }
    GcOptions all;
    all.abandoned = std::chrono::nanoseconds(-1'000'000'000);
    const auto collected = CollectGarbage(repository, all);
    ASSERT_TRUE(collected) << collected.error().ToString();
    ExpectIntact(repository, images);
    ExpectNoGarbage(objects, repository);
  }

  // Three pushes, a deletion and two gcs at the same time.
  void RunRound(MemoryStore& objects, const Repository& repository,
                std::map<std::string, Image>& images, size_t round) {
    Gate gate(random_());
    std::vector<std::unique_ptr<MortalStore>> stores;
    for (size_t i = 0; i < kPushes + kGcs + 1; ++i) {
      stores.push_back(std::make_unique<MortalStore>(objects, gate, Lives(40)));
    }
    std::vector<std::string> names;
    std::vector<size_t> sources;
    for (size_t i = 0; i < kPushes; ++i) {
      names.push_back("r" + std::to_string(round) + "p" + std::to_string(i));
      sources.push_back(random_() % kSources);
    }
    std::string victim;
    if (!images.empty()) {
      victim = std::next(images.begin(), static_cast<ptrdiff_t>(random_() % images.size()))->first;
      images.erase(victim);  // from now on the image may or may not exist
    }
    std::vector<uint8_t> pushed(kPushes);
    auto actor = [&](size_t i) -> Status {
      const Repository mine(*stores[i], repository.info(), *sealing_);
      if (i < kPushes) {
        auto image = store::ImageReader::Open(paths_[sources[i]]);
        if (!image) return Fail(std::move(image).error());
        pushed[i] = Push(mine, **image, names[i], testing::PushWith(names_)).has_value() ? 1 : 0;
      } else if (i < kPushes + kGcs) {
        (void)CollectGarbage(mine);
      } else if (!victim.empty()) {
        (void)DeleteImage(mine, victim);
      }
      return {};
    };
    ASSERT_TRUE(InParallel(stores.size(), actor));
    for (size_t i = 0; i < kPushes; ++i) images[names[i]] = {sources[i], pushed[i] != 0};
  }

  // Every image that is visible is complete, and every image that must exist is visible.
  void ExpectIntact(const Repository& repository, const std::map<std::string, Image>& images) {
    const auto listed = ListImages(repository);
    ASSERT_TRUE(listed) << listed.error().ToString();
    std::set<std::string> visible;
    for (const ImageSummary& image : *listed) {
      visible.insert(image.name);
      const auto report = VerifyImage(repository, image.name);
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_THAT(report->findings, ::testing::IsEmpty()) << image.name;
    }
    for (const auto& [name, image] : images) {
      EXPECT_TRUE(!image.must_exist || visible.contains(name)) << name << " is lost";
    }
  }

  void ExpectNoGarbage(const MemoryStore& objects, const Repository& repository) {
    std::set<std::string> wanted{kRepoKey};
    const auto listed = ListImages(repository);
    for (const ImageSummary& image : *listed) {
      wanted.insert(ImageKey(image.name));
      const auto record = repository.ReadImage(image.name, {});
      ASSERT_TRUE(record);
      for (const PackId& pack : record->packs) {
        wanted.insert({PackKey(pack), PlaceKey(pack.push), NamesKey(pack.push)});
      }
    }
    for (const auto& [key, data] : objects.Objects()) {
      EXPECT_TRUE(wanted.contains(key)) << key << " is garbage";
    }
  }

  const store::UnitNames names_ = NamesOf(1);
  const std::unique_ptr<Sealing> sealing_ = PlainSealing();
  TempStore local_;
  std::vector<Contents> contents_;
  std::vector<std::string> paths_;
  std::mt19937 random_;
};

TEST_F(KillTest, LosesNoImageAndLeavesNoGarbage) {
  for (uint32_t seed = 1; seed <= 20 && !HasFailure(); ++seed) Run(seed);
}

using KillTestNightly = KillTest;

TEST_F(KillTestNightly, LosesNoImageAndLeavesNoGarbage) {
  for (uint32_t seed = 1000; seed < 2000 && !HasFailure(); ++seed) Run(seed);
}

}  // namespace

}  // namespace stasis::repository
