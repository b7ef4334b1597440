// Handles that one program exports as files and another imports: compared with the plain driver,
// and through a suspend of both.

#include <signal.h>
#include <unistd.h>

#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

constexpr const char* kBytes = "4194304";

std::string Import(Target& importer, Target& owner, const std::string& file) {
  return importer.Ask("handle-import " + std::to_string(owner.pid().value) + " " + file);
}
std::string Map(Target& target, const std::string& handle) {
  return target.Ask("handle-map " + handle + " " + kBytes);
}

// Waits until at least `free_bytes` are free. The GPU notices the end of a process, and an owner
// notices the end of an importer, only after a delay.
bool ComesTo(size_t free_bytes) {
  for (int i = 0; i < 60000 && FreeBytes() < free_bytes; ++i) usleep(1000);
  return FreeBytes() >= free_bytes;
}

// The tests must pass with the plain driver and with the agent.
class Exported : public ::testing::TestWithParam<bool> {
 protected:
  Target owner_{{"direct"}, GetParam()}, importer_{{"direct"}, GetParam()};
  const std::string made_ = owner_.Ask(std::string("handle-make ") + kBytes);
  const std::string file_ = owner_.Ask("handle-export " + made_);
};

TEST_P(Exported, BothSeeEachOthersWrites) {
  const std::string mine = Map(owner_, made_);
  ASSERT_EQ(owner_.Ask("fill " + mine + " 5"), "ok");
  const std::string handle = Import(importer_, owner_, file_);
  const std::string theirs = Map(importer_, handle);
  ASSERT_EQ(importer_.Ask("check " + theirs + " 5"), "right");
  ASSERT_EQ(importer_.Ask("fill " + theirs + " 6"), "ok");
  EXPECT_EQ(owner_.Ask("check " + mine + " 6"), "right");
  EXPECT_EQ(importer_.Ask("handle-about " + handle), "1 1 0 1") << "pinned, device 0, as a file";
  EXPECT_EQ(importer_.Ask("handle-export " + handle), kInvalidValue) << "it is not handed on";
  EXPECT_EQ(importer_.Ask("handle-map " + handle + " 2097152"), kInvalidValue) << "only whole";
  EXPECT_EQ(importer_.Ask("handle-map " + handle + " 8388608"), kInvalidValue);
  // A file can be imported any number of times, by any process, until it is closed.
  Target third({"direct"}, GetParam());
  const std::string only = Import(third, owner_, file_);
  EXPECT_EQ(third.Ask("check " + Map(third, only) + " 6"), "right");
  EXPECT_EQ(third.Ask("handle-release " + only), "0");
  EXPECT_EQ(importer_.Ask("check " + Map(importer_, Import(importer_, owner_, file_)) + " 6"),
            "right");
  // Each import is released separately.
  const std::string first = Import(third, owner_, file_), second = Import(third, owner_, file_);
  EXPECT_EQ(third.Ask("handle-release " + first), "0");
  EXPECT_EQ(third.Ask("check " + Map(third, second) + " 6"), "right");
  EXPECT_EQ(third.Ask("handle-release " + second), "0");
  EXPECT_EQ(third.Ask("handle-release " + second), "1");
  // The owner can import too.
  EXPECT_EQ(owner_.Ask("check " + Map(owner_, Import(owner_, owner_, file_)) + " 6"), "right");
  EXPECT_EQ(owner_.Ask("handle-close " + file_), "0");
  EXPECT_EQ(Import(importer_, owner_, file_), kInvalidValue);
}

TEST_P(Exported, MemoryLivesUntilItsLastUserReleasesIt) {
  const size_t before = FreeBytes() + 4194304;
  owner_.Ask("fill " + Map(owner_, made_) + " 7");
  const std::string handle = Import(importer_, owner_, file_);
  EXPECT_EQ(owner_.Ask("handle-unmap 0"), "0");
  EXPECT_EQ(owner_.Ask("handle-release " + made_), "0");
  EXPECT_EQ(owner_.Ask("handle-release " + made_), "1");
  EXPECT_EQ(owner_.Ask("handle-close " + file_), "0");
  const std::string theirs = Map(importer_, handle);
  EXPECT_EQ(importer_.Ask("check " + theirs + " 7"), "right");
  // A mapping keeps the memory like a handle, and can be converted back to one.
  EXPECT_EQ(importer_.Ask("handle-release " + handle), "0");
  EXPECT_EQ(importer_.Ask("handle-map " + handle + " " + kBytes), kInvalidValue);
  const std::string again = importer_.Ask("handle-retain " + theirs);
  EXPECT_EQ(importer_.Ask("handle-unmap " + theirs), "0");
  EXPECT_EQ(importer_.Ask("check " + Map(importer_, again) + " 7"), "right");
  EXPECT_EQ(importer_.Ask("handle-release " + again), "0");
  EXPECT_LT(FreeBytes(), before);
  EXPECT_EQ(importer_.Ask("handle-unmap 1"), "0");
  EXPECT_TRUE(ComesTo(before)) << "and that was the last of it";
}

TEST_P(Exported, MemorySurvivesItsOwnersEnd) {
  owner_.Ask("fill " + Map(owner_, made_) + " 8");
  const std::string theirs = Map(importer_, Import(importer_, owner_, file_));
  kill(owner_.pid().value, SIGKILL);
  owner_.Wait();
  EXPECT_EQ(importer_.Ask("check " + theirs + " 8"), "right");
}

TEST_P(Exported, AnInvalidHandleIsRejected) {
  EXPECT_EQ(Import(importer_, owner_, "0"), kInvalidValue) << "a pipe";
  EXPECT_EQ(Import(importer_, owner_, "12345"), kInvalidValue) << "not open";
  EXPECT_EQ(owner_.Ask("handle-export " + owner_.Ask(std::string("handle-make ") + kBytes + " 1")),
            kInvalidValue)
      << "it was not asked for";
  EXPECT_EQ(importer_.Ask("handle-make 4096"), kInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(, Exported, ::testing::Values(false, true), [](const auto& info) {
  return std::string(info.param ? "agent" : "plain");
});

class ExportedLookups : public ::testing::TestWithParam<const char*> {};

TEST_P(ExportedLookups, AreAllHooked) {
  Target owner({GetParam()}), importer({GetParam()});
  const std::string made = owner.Ask(std::string("handle-make ") + kBytes);
  const std::string mine = Map(owner, made);
  owner.Ask("fill " + mine + " 5");
  const std::string handle = Import(importer, owner, owner.Ask("handle-export " + made));
  EXPECT_EQ(importer.Ask("check " + Map(importer, handle) + " 5"), "right");
  auto client = importer.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().blockers, 0u);
  EXPECT_EQ(client->hello().ipc_ranges, 1u);
}

INSTANTIATE_TEST_SUITE_P(, ExportedLookups,
                         ::testing::Values("direct", "dlsym", "lookup", "cudart"),
                         [](const auto& info) { return std::string(info.param); });

// Files may come from any process.
TEST(ExportedFile, AForgedHandleOpensNothing) {
  Target owner({"direct"}), importer({"direct"}), plain({"direct"}, /*agent=*/false);
  const std::string made = owner.Ask(std::string("handle-make ") + kBytes);
  const std::string file = owner.Ask("handle-export " + made);
  // Changes each field in turn: magic, kind, name, process, version, handle.
  for (int at : {0, 7, 8, 24, 28, 32, 39}) {
    const std::string spoiled = owner.Ask("handle-spoil " + file + " " + std::to_string(at));
    EXPECT_EQ(Import(importer, owner, spoiled), kInvalidValue) << at;
  }
  EXPECT_EQ(Import(plain, owner, file), kInvalidValue) << "without an agent";
  EXPECT_EQ(Import(importer, owner, file), "0");
  // A handle that its owner has released and no other process holds cannot be opened.
  EXPECT_EQ(importer.Ask("handle-release 0"), "0");
  EXPECT_EQ(owner.Ask("handle-release " + made), "0");
  EXPECT_EQ(Import(importer, owner, file), kInvalidValue);
  // A handle that was never exported cannot be opened, even if a file names it. Handles are
  // numbered, and the changed bit turns the second into the third.
  const std::string second = owner.Ask(std::string("handle-make ") + kBytes);
  const std::string other = owner.Ask("handle-export " + second);
  owner.Ask(std::string("handle-make ") + kBytes);
  EXPECT_EQ(Import(importer, owner, owner.Ask("handle-spoil " + other + " 32")), kInvalidValue);
  EXPECT_EQ(Import(importer, owner, other), "1");
}

// A file that is not sealed could change later.
TEST(ExportedFile, AnUnsealedFileOpensNothing) {
  Target owner({"direct"}), importer({"direct"});
  const std::string made = owner.Ask(std::string("handle-make ") + kBytes);
  const std::string file = owner.Ask("handle-export " + made);
  EXPECT_EQ(Import(importer, owner, owner.Ask("handle-copy " + file)), kInvalidValue);
  EXPECT_EQ(Import(importer, owner, file), "0");
}

// Two programs that share two handles; the owner has released the second one.
class Shared : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string made = owner_.Ask(std::string("handle-make ") + kBytes);
    file_ = owner_.Ask("handle-export " + made);
    mine_ = Map(owner_, made);
    owner_.Ask("fill " + mine_ + " 1");
    theirs_ = Map(importer_, Import(importer_, owner_, file_));
    const std::string left = owner_.Ask(std::string("handle-make ") + kBytes);
    left_ = Import(importer_, owner_, owner_.Ask("handle-export " + left));
    EXPECT_EQ(owner_.Ask("handle-release " + left), "0");
    left_piece_ = Map(importer_, left_);
    EXPECT_EQ(importer_.Ask("fill " + left_piece_ + " 2"), "ok");
  }

  void Away(agent_client::AgentClient& a, agent_client::AgentClient& b) {
    ASSERT_DONE(a.Close(kLong));
    ASSERT_DONE(b.Close(kLong));
    auto taken = a.ExportAll(kLong);
    auto nothing = b.ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(nothing);
    EXPECT_EQ(nothing->ranges.size(), 0u) << "it travels once, with its owner";
    EXPECT_EQ(taken->ranges.size(), 2u);
    taken_ = std::move(*taken);
    // Any order must work, so each program is first in some test.
    ASSERT_DONE((owner_goes_first_ ? a : b).Release(kUntilCommit, kLong));
    ASSERT_DONE((owner_goes_first_ ? b : a).Release(kUntilCommit, kLong));
    owner_goes_first_ = !owner_goes_first_;
  }

  Target owner_{{"direct"}}, importer_{{"direct"}};
  std::string file_, mine_, theirs_, left_, left_piece_;
  agent_client::Export taken_;
  bool owner_goes_first_ = false;
};

TEST_F(Shared, IsSuspendedAndRestored) {
  const std::string address = importer_.Ask("address " + theirs_);
  const size_t before = FreeBytes();
  for (int round = 0; round < 2; ++round) {
    auto a = owner_.Connect(), b = importer_.Connect();
    ASSERT_DONE(a);
    ASSERT_DONE(b);
    ASSERT_EQ(a->hello().ipc_peer_count, 1u);
    EXPECT_EQ(a->hello().ipc_peers[0].role, agent_protocol::kIpcUsesOurs)
        << "nothing of it is lost";
    ASSERT_EQ(b->hello().ipc_peer_count, 1u);
    EXPECT_EQ(b->hello().ipc_peers[0].role, agent_protocol::kIpcOwnsTheirs);
    EXPECT_EQ(b->hello().ipc_ranges, 2u);
    EXPECT_EQ(b->hello().imported_ranges, 2u);
    Away(*a, *b);
    ASSERT_DONE(a->Commit(kLong));
    ASSERT_DONE(b->Commit(kLong));
    importer_.Say("handle-about " + left_);  // blocks until the memory is back
    for (Target* target : {&owner_, &importer_}) LockAndCheckpoint(*target);
    auto bytes = TakeAway(&taken_);
    EXPECT_GE(FreeBytes(), before + 8 * 1000 * 1000) << "the GPU is free";
    auto fds = PutBack(taken_, bytes);
    for (Target* target : {&owner_, &importer_}) RestoreAndUnlock(*target);
    ASSERT_DONE(b->Map({}, {}, kLong));
    auto early = b->Open(kLong);
    ASSERT_FALSE(early.has_value()) << "it has to wait for its owner";
    ASSERT_DONE(a->Map(taken_.ranges, Numbers(fds), kLong));
    fds.clear();
    ASSERT_DONE(b->Rejoin(kLong));
    ASSERT_DONE(a->Open(kLong));
    ASSERT_DONE(b->Open(kLong));
    EXPECT_EQ(importer_.Hear(), "1 1 0 1");
    EXPECT_EQ(importer_.Ask("address " + theirs_), address);
    EXPECT_EQ(importer_.Ask("check " + theirs_ + " 1"), "right");
    EXPECT_EQ(importer_.Ask("check " + left_piece_ + " 2"), "right");
    ASSERT_EQ(importer_.Ask("fill " + theirs_ + " 1"), "ok");
    EXPECT_EQ(owner_.Ask("check " + mine_ + " 1"), "right");
    EXPECT_EQ(FreeBytes(), before) << "it is there once, not twice";
  }
  // The old file stays valid after a suspend. Memory kept for other processes is freed when the
  // last of them releases it.
  Target late({"direct"});
  EXPECT_EQ(late.Ask("check " + Map(late, Import(late, owner_, file_)) + " 1"), "right");
  const size_t now = FreeBytes();
  EXPECT_EQ(importer_.Ask("handle-unmap " + left_piece_), "0");
  EXPECT_EQ(importer_.Ask("handle-release " + left_), "0");
  EXPECT_TRUE(ComesTo(now + 4 * 1000 * 1000));
}

// The clients die while the memory is away, the owner's client first. The owner resumes before its
// importer, and must not free memory that the importer will request.
TEST_F(Shared, SurvivesTheDeathOfItsClients) {
  auto a = owner_.Connect(), b = importer_.Connect();
  ASSERT_DONE(a);
  ASSERT_DONE(b);
  Away(*a, *b);
  taken_ = {};
  { auto gone = std::move(*a); }
  EXPECT_EQ(owner_.Ask("check " + mine_ + " 1"), "right") << "it runs";
  { auto gone = std::move(*b); }
  EXPECT_EQ(importer_.Ask("check " + theirs_ + " 1"), "right");
  EXPECT_EQ(importer_.Ask("check " + left_piece_ + " 2"), "right");
}

// An importer that dies while its memory is away never requests it.
TEST_F(Shared, MemoryKeptForAnEndedProcessIsFreed) {
  auto a = owner_.Connect(), b = importer_.Connect();
  ASSERT_DONE(a);
  ASSERT_DONE(b);
  owner_goes_first_ = true;
  Away(*a, *b);
  taken_ = {};
  kill(importer_.pid().value, SIGKILL);
  importer_.Wait();
  { auto gone = std::move(*a); }
  EXPECT_EQ(owner_.Ask("check " + mine_ + " 1"), "right");
  a = owner_.Connect();
  ASSERT_DONE(a);
  EXPECT_EQ(a->hello().range_count, 1u);
  EXPECT_FALSE(SaysItShares(owner_));
}

// The same with an owner that already runs and gets no notification.
TEST_F(Shared, MemoryOwedToAnEndedProcessIsFreed) {
  auto a = owner_.Connect(), b = importer_.Connect();
  ASSERT_DONE(a);
  ASSERT_DONE(b);
  Away(*a, *b);
  taken_ = {};
  { auto gone = std::move(*a); }
  EXPECT_EQ(owner_.Ask("check " + mine_ + " 1"), "right") << "it runs";
  EXPECT_TRUE(SaysItShares(owner_));
  const size_t now = FreeBytes();
  kill(importer_.pid().value, SIGKILL);
  importer_.Wait();
  EXPECT_TRUE(ComesTo(now + 4 * 1000 * 1000));
  for (int i = 0; i < 60000 && SaysItShares(owner_); ++i) usleep(1000);
  EXPECT_FALSE(SaysItShares(owner_));
}

// An importer closes all descriptors it finds. Memory that its owner has released then has no other
// holder, and a suspend would lose it; memory that the owner still holds is requested again.
TEST_F(Shared, MemoryWithoutAnotherHolderIsNotReleased) {
  ASSERT_EQ(importer_.Ask("close-descriptors"), "ok");
  for (int i = 0; i < 60000 && SaysItShares(owner_); ++i) usleep(1000);
  ASSERT_FALSE(SaysItShares(owner_)) << "it has heard of it";
  auto b = importer_.Connect();
  while (!b) b = importer_.Connect();  // the agent creates another socket
  const Status closed = b->Close(kLong);
  ASSERT_FALSE(closed.has_value());
  EXPECT_NE(closed.error().ToString().find("would be lost"), std::string::npos)
      << closed.error().ToString();
  EXPECT_EQ(importer_.Ask("check " + left_piece_ + " 2"), "right");
  EXPECT_EQ(importer_.Ask("handle-unmap " + left_piece_), "0");
  EXPECT_EQ(importer_.Ask("handle-release " + left_), "0");
  ASSERT_DONE(b->Close(kLong));
  auto a = owner_.Connect();
  ASSERT_DONE(a);
  EXPECT_EQ(a->hello().ipc_peer_count, 1u) << "they know of each other again";
  ASSERT_DONE(b->Open(kLong));
  EXPECT_EQ(importer_.Ask("check " + theirs_ + " 1"), "right");
}

// Otherwise the agent would record memory as mapped although its addresses are invalid.
TEST_F(Shared, MemoryThatTheDriverDoesNotReleaseStaysMapped) {
  for (Target* target : {&importer_, &owner_}) {
    for (const char* rules : {"cuMemRelease=fail(999)", "cuMemUnmap=fail(999)"}) {
      SCOPED_TRACE(rules);
      auto a = owner_.Connect(), b = importer_.Connect();
      ASSERT_DONE(a);
      ASSERT_DONE(b);
      ASSERT_DONE(a->Close(kLong));
      ASSERT_DONE(b->Close(kLong));
      {
        Fault fault(*target, rules);
        EXPECT_FALSE((target == &owner_ ? a : b)->Release(kUntilCommit, kLong).has_value());
      }
      { auto gone = std::move(*a); }
      { auto gone = std::move(*b); }
      EXPECT_EQ(owner_.Ask("check " + mine_ + " 1"), "right");
      EXPECT_EQ(importer_.Ask("check " + theirs_ + " 1"), "right");
      EXPECT_EQ(importer_.Ask("check " + left_piece_ + " 2"), "right");
    }
  }
}

// An import while the owner's gate is closed waits, outside of the importer's own gate.
TEST_F(Shared, AnImportWaitsForTheOwnersGate) {
  auto a = owner_.Connect();
  ASSERT_DONE(a);
  ASSERT_DONE(a->Close(kLong));
  Target late({"direct"});
  late.Say("handle-import " + std::to_string(owner_.pid().value) + " " + file_);
  auto b = late.Connect();
  while (!b) b = late.Connect();  // the agent starts with the call
  ASSERT_DONE(b->Close(kLong));
  ASSERT_DONE(a->Open(kLong));
  ASSERT_DONE(b->Open(kLong));
  EXPECT_EQ(late.Hear(), "0");
  EXPECT_EQ(late.Ask("check " + Map(late, "0") + " 1"), "right");
}

}  // namespace
}  // namespace stasis::agent_test
