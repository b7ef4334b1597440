// The gate between a program and its GPU: which calls it blocks, and when it cannot close.

#include "stand.h"

namespace stasis::agent_test {
namespace {

// While the gate is closed a call blocks and a query of the table does not; after it opens the call
// proceeds.
TEST(Gate, BlocksACallUntilItOpens) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 4194304");
  target.Ask("fill " + piece + " 3");
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  EXPECT_EQ(target.Ask("range " + piece + " 77"), "0 4194304");
  target.Say("check " + piece + " 3");
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Hear(), "right");
}

TEST(Gate, ReopensAtTheDeadlineWhenWorkDoesNotEnd) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 4194304");
  ASSERT_EQ(target.Ask("stuck"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  for (int i = 0; i < 2; ++i) {
    auto closed = client->Close(milliseconds(200));
    ASSERT_FALSE(closed.has_value());
    EXPECT_EQ(closed.error().code, Code::kDeadlineExceeded);
    EXPECT_EQ(target.Ask("fill " + piece + " 3"), "ok") << "the program runs on";
  }
  ASSERT_EQ(target.Ask("unstuck"), "ok");
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

// Endless work keeps the gate closed for a client that proceeds in steps: calls pass only as the
// client allows.
TEST(Gate, ContinuesInStepsWhileWorkDoesNotEnd) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 4194304");
  ASSERT_EQ(target.Ask("fill " + piece + " 3"), "ok");
  ASSERT_EQ(target.Ask("stuck"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_TRUE(client->goes_in_steps());
  auto rests = client->CloseInSteps(milliseconds(100));
  ASSERT_DONE(rests);
  EXPECT_FALSE(*rests);
  EXPECT_EQ(client->not_yet(), "the program's work on the GPU did not end");
  EXPECT_FALSE(client->ExportAll(kLong).has_value()) << "it is not at rest";
  auto status = client->Status(kLong);
  ASSERT_DONE(status);
  EXPECT_EQ(status->state, agent_protocol::State::kShut);
  target.Say("unstuck");  // finishes the work without a call, and then waits for it, which may pass
                          // the gate
  EXPECT_EQ(target.Hear(), "ok");
  rests = client->Rest(0, kLong);
  ASSERT_DONE(rests);
  EXPECT_TRUE(*rests);
  target.Say("check " + piece + " 3");
  for (int i = 0; i < 100; ++i) {
    rests = client->Rest(1, kLong);
    ASSERT_DONE(rests);
    EXPECT_TRUE(*rests);
    if (target.Speaks()) break;
  }
  EXPECT_EQ(target.Hear(), "right") << "its calls go through one by one";
  ASSERT_DONE(client->ExportAll(kLong));
  ASSERT_DONE(client->Open(kLong));
}

// A capture continues through the open gate, however short the steps are.
TEST(Gate, ShutsInStepsAfterACaptureHasEnded) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("capture"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto rests = client->CloseInSteps(milliseconds(50));
  for (int i = 0; i < 3; ++i) {
    ASSERT_DONE(rests);
    EXPECT_FALSE(*rests);
    EXPECT_EQ(client->not_yet(), "a stream capture did not end");
    rests = client->Rest(1, milliseconds(50));
  }
  EXPECT_EQ(target.Ask("end-capture"), "0");
  rests = client->Rest(0, kLong);
  ASSERT_DONE(rests);
  EXPECT_TRUE(*rests);
  ASSERT_DONE(client->Open(kLong));
}

// A capture that begins in a step may continue over any number of steps. Calls after its end must
// wait.
TEST(Gate, ACaptureThatBeginsInAStepContinuesToItsEnd) {
  Target target({"direct"});
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto rests = client->CloseInSteps(kLong);
  ASSERT_DONE(rests);
  ASSERT_TRUE(*rests);
  target.Say("capture");
  rests = client->Rest(1, milliseconds(200));
  EXPECT_EQ(target.Hear(), "ok");
  for (uint32_t calls : {0, 1, 0}) {
    ASSERT_DONE(rests);
    EXPECT_FALSE(*rests);
    EXPECT_EQ(client->not_yet(), "a stream capture did not end");
    rests = client->Rest(calls, milliseconds(50));
  }
  target.Say("end-capture");
  rests = client->Rest(0, kLong);
  ASSERT_DONE(rests);
  EXPECT_TRUE(*rests);
  EXPECT_EQ(target.Hear(), "0") << "the capture is whole";
  target.Say("alloc 4194304");
  EXPECT_FALSE(target.Speaks());
  ASSERT_DONE(client->ExportAll(kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_NE(target.Hear(), "");
}

// A child process passes the gate in every state of its parent's gate.
TEST(Gate, AChildForkedInAStepIsNotBlocked) {
  Target target({"direct"});
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto rests = client->CloseInSteps(kLong);
  ASSERT_DONE(rests);
  ASSERT_TRUE(*rests);
  EXPECT_EQ(target.Ask("fork"), "0");
  target.Say("fork");
  rests = client->Rest(8, milliseconds(500));
  ASSERT_DONE(rests);
  EXPECT_TRUE(*rests);
  EXPECT_EQ(target.Hear(), "0");
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("fork"), "0");
}

TEST(Gate, OpensWhenAClientInStepsGivesUpOrEnds) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 4194304");
  ASSERT_EQ(target.Ask("stuck"), "ok");
  for (bool dies : {false, true}) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    auto rests = client->CloseInSteps(milliseconds(100));
    ASSERT_DONE(rests);
    EXPECT_FALSE(*rests);
    if (dies) {
      client = Fail(Code::kCancelled, "dead");
    } else {
      ASSERT_DONE(client->Open(kLong));
    }
    EXPECT_EQ(target.Ask("fill " + piece + " 3"), "ok") << "the program runs on";
  }
  ASSERT_EQ(target.Ask("unstuck"), "ok");
}

TEST(Gate, DoesNotCloseOverACapture) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("capture"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto closed = client->Close(milliseconds(200));
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, Code::kDeadlineExceeded);
  EXPECT_EQ(target.Ask("end-capture"), "0");
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(Gate, SixteenThreadsThroughTwentySuspends) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("hammer 16"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  uint64_t before = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    uint64_t still = std::stoull(target.Ask("rounds"));
    auto bytes = TakeAway(&*taken);
    auto fds = PutBack(*taken, bytes);
    EXPECT_EQ(std::stoull(target.Ask("rounds")), still) << "no call passes a closed gate";
    EXPECT_GE(still, before);
    before = still;
    ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
    ASSERT_DONE(client->Open(kLong));
  }
  EXPECT_EQ(target.Ask("calm"), "wrong 0");
}

// Fast suspends without another process, so that threads reach the gate at many different moments.
TEST(Gate, SixtyFourThreadsThroughTwoHundredSuspends) {
  Target target({"dlsym"});
  ASSERT_EQ(target.Ask("hammer 64"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  for (int round = 0; round < 200; ++round) {
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
    ASSERT_DONE(client->Open(kLong));
  }
  EXPECT_EQ(target.Ask("calm"), "wrong 0");
}

}  // namespace
}  // namespace stasis::agent_test
