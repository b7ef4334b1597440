#include "migration/channel.h"

#include <poll.h>
#include <signal.h>

#include <vector>

#include "migration/testing/peers.h"
#include "objects/testing/conformance.h"

namespace stasis::migration {
namespace {

using objects::CallOptions;
using objects::testing::Pattern;
using testing::Greeting;
using testing::Head;
using testing::RawPeer;

constexpr char kClosed[] = "the other side has closed the connection";
constexpr char kClosedWithin[] =
    "the other side has closed the connection in the middle of a message";

CallOptions Within(int milliseconds) {
  return {Deadline::In(std::chrono::milliseconds(milliseconds)), {}};
}

#define EXPECT_ERROR(expr, expected_code, expected_message) \
  do {                                                      \
    const auto& result_ = (expr);                           \
    ASSERT_FALSE(result_.has_value());                      \
    EXPECT_EQ(result_.error().code, (expected_code));       \
    EXPECT_EQ(result_.error().message, (expected_message)); \
  } while (0)

struct Kind {
  const char* name;
  std::pair<testing::End, testing::End> (*make)();
};

class BothSidesTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    // A process that writes to a pipe must ignore SIGPIPE. Sockets do not need this.
    ::signal(SIGPIPE, GetParam().make == testing::Pipes ? SIG_IGN : SIG_DFL);
    std::tie(a_, b_) = testing::OpenBoth(GetParam().make());
    ASSERT_TRUE(a_ && b_);
  }
  testing::ChannelPtr a_, b_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, BothSidesTest,
                         ::testing::Values(Kind{"sockets", testing::Sockets},
                                           Kind{"pipes", testing::Pipes}),
                         [](const auto& info) { return info.param.name; });

TEST_P(BothSidesTest, CarriesMessagesInBothDirections) {
  const std::string_view payload[] = {"one", "", "two"};
  EXPECT_SUCCESS(a_->Send({7, "head", payload}, {}));
  EXPECT_SUCCESS(a_->Send({65535, "", {}}, {}));
  EXPECT_SUCCESS(b_->Send({8, "back", {}}, {}));
  const auto first = b_->Receive({}, {});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->type, 7);
  EXPECT_EQ(first->header, "head");
  EXPECT_EQ(first->payload_bytes, 6u);
  EXPECT_EQ(*b_->ReadPayload({}), "onetwo");
  const auto second = b_->Receive({}, {});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->type, 65535);
  EXPECT_EQ(second->header + *b_->ReadPayload({}), "");
  EXPECT_EQ(a_->Receive({}, {})->header, "back");
}

TEST_P(BothSidesTest, CarriesALongPayloadInManyPieces) {
  const std::string data = Pattern(9'000'001), header = Pattern(kMaxHeaderBytes);
  std::vector<std::string_view> pieces;
  for (size_t at = 0, size = 0; at < data.size(); at += size, size += 97) {
    pieces.push_back(std::string_view(data).substr(at, size));
  }
  ASSERT_GT(pieces.size(), 300u);  // more than one system call takes
  auto sender = Thread::Start([&] { EXPECT_SUCCESS(a_->Send({1, header, pieces}, {})); });
  const auto frame = b_->Receive({}, {});
  ASSERT_TRUE(frame) << frame.error().ToString();
  EXPECT_TRUE(frame->header == header);
  std::string begin(100, '\0');
  EXPECT_SUCCESS(b_->ReadPayload(begin, {}));
  EXPECT_EQ(b_->payload_left(), data.size() - 100);
  EXPECT_TRUE(begin + *b_->ReadPayload({}) == data);
}

TEST_P(BothSidesTest, DiscardsWhatIsNotRead) {
  const std::string data = Pattern(50'000);
  const std::string_view payload[] = {data};
  EXPECT_SUCCESS(a_->Send({1, "", payload}, {}));
  EXPECT_SUCCESS(a_->Send({2, "next", {}}, {}));
  ASSERT_TRUE(b_->Receive({}, {}));
  const auto next = b_->Receive({}, {});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->header, "next");
}

TEST_P(BothSidesTest, ReportsAClosedConnection) {
  b_.reset();
  EXPECT_ERROR(a_->Receive({}, {}), Code::kUnavailable, kClosed);
  EXPECT_ERROR(a_->Send({1, "", {}}, {}), Code::kUnavailable, kClosed);
}

TEST_P(BothSidesTest, SendingToAClosedConnectionIsAnError) {
  b_.reset();
  EXPECT_ERROR(a_->Send({1, "", {}}, {}), Code::kUnavailable, kClosed);
  EXPECT_ERROR(a_->Receive({}, {}), Code::kUnavailable, kClosed);
}

TEST_P(BothSidesTest, RefusesToSendTooMuch) {
  const std::string piece(1 << 20, 'p');
  const std::vector<std::string_view> pieces(129, piece);
  EXPECT_CODE(a_->Send({1, "", pieces}, {}), Code::kOutOfRange);
  EXPECT_CODE(a_->Send({1, piece + "p", {}}, {}), Code::kOutOfRange);
  EXPECT_SUCCESS(a_->Send({2, "fits", {}}, {}));
  EXPECT_EQ(b_->Receive({}, {})->header, "fits");
}

TEST_P(BothSidesTest, ADeadlineWhileSendingBreaksTheChannel) {
  const std::string data(8 << 20, 'd');
  const std::string_view payload[] = {data};
  EXPECT_CODE(a_->Send({1, "", payload}, Within(20)), Code::kDeadlineExceeded);
  const std::string later = "the connection is broken: the deadline has passed";
  EXPECT_ERROR(a_->Send({1, "", {}}, {}), Code::kUnavailable, later);
  EXPECT_ERROR(a_->Receive({}, {}), Code::kUnavailable, later);
}

TEST_P(BothSidesTest, AStopEndsASend) {
  const std::string data(8 << 20, 'd');
  const std::string_view payload[] = {data};
  const testing::StopsTheSleeper stop;
  EXPECT_CODE(a_->Send({1, "", payload}, {{}, stop.token()}), Code::kCancelled);
  EXPECT_CODE(a_->Send({1, "", {}}, {}), Code::kUnavailable);
}

TEST_P(BothSidesTest, AStopEndsAReceive) {
  for (int i = 0; i < 2; ++i) {  // the first stop leaves nothing behind that ends the second call
    const testing::StopsTheSleeper stop;
    EXPECT_CODE(a_->Receive({}, {{}, stop.token()}), Code::kCancelled);
    EXPECT_CODE(a_->Receive({}, Within(1)), Code::kDeadlineExceeded);
  }
  EXPECT_SUCCESS(b_->Send({1, "still usable", {}}, {}));
  EXPECT_EQ(a_->Receive({}, {})->header, "still usable");
}

TEST(ChannelTest, ACallWithinItsLimitsSendsNothingAfterThem) {
  RawPeer raw;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_CODE(raw.channel->Send({1, "", {}}, {{}, stop.get_token()}), Code::kCancelled);
  EXPECT_CODE(raw.channel->Send({1, "", {}}, Within(0)), Code::kDeadlineExceeded);
  EXPECT_SUCCESS(raw.channel->Send({2, "", {}}, {}));
  std::string sent(28, '\0');
  EXPECT_EQ(::read(raw.peer.get(), sent.data(), sent.size()), 28);
  EXPECT_EQ(sent, Greeting() + Head(2, 0, 0));
}

TEST(ChannelTest, ReportsAConnectionThatIsClosedWithinAMessage) {
  const std::string message = Head(1, 4, 10) + "head" + "payload...";
  for (const size_t size : {1, 15, 16, 19, 20, 29}) {
    RawPeer raw;
    raw.Say(message.substr(0, size));
    raw.peer.Reset();
    const auto frame = raw.channel->Receive({}, {});
    const Status read =
        frame ? Status(raw.channel->ReadPayload({}).map([](const auto&) {})) : Fail(frame.error());
    EXPECT_ERROR(read, Code::kUnavailable, kClosedWithin);
    EXPECT_ERROR(raw.channel->Receive({}, {}), Code::kUnavailable, kClosedWithin);
  }
}

TEST(ChannelTest, ADeadlineWithinAMessageBreaksTheChannel) {
  for (const std::string& begin : {Head(1, 4, 10).substr(0, 3), Head(1, 4, 10) + "he"}) {
    RawPeer raw;
    raw.Say(begin);
    EXPECT_CODE(raw.channel->Receive({}, Within(10)), Code::kDeadlineExceeded);
    EXPECT_CODE(raw.channel->Receive({}, {}), Code::kUnavailable);
  }
}

TEST(ChannelTest, RefusesInvalidSizesBeforeItReadsOn) {
  const Limits small{.header_bytes = 8, .payload_bytes = 100};
  const Limits boundless{.header_bytes = UINT32_MAX, .payload_bytes = UINT64_MAX};
  struct Case {
    std::string head;
    Limits limits;
  };
  for (const Case& wrong :
       {Case{Head(1, UINT32_MAX, 0), {}}, Case{Head(1, kMaxHeaderBytes + 1, 0), boundless},
        Case{Head(1, 0, UINT64_MAX), {}}, Case{Head(1, 0, kMaxPayloadBytes + 1), boundless},
        Case{Head(1, 9, 0), small}, Case{Head(1, 0, 101), small}, Case{Head(1, 0, 0, 1), {}}}) {
    RawPeer raw;
    raw.Say(wrong.head);
    const auto frame = raw.channel->Receive(wrong.limits, {});
    ASSERT_FALSE(frame);
    EXPECT_EQ(frame.error().code, Code::kInternal);
    EXPECT_TRUE(frame.error().message.starts_with("the other side sent an invalid message"));
    EXPECT_CODE(raw.channel->Receive({}, {}), Code::kUnavailable);
  }
}

TEST(ChannelTest, RefusesAnotherGreeting) {
  struct Case {
    std::string greeting, message;
  };
  for (const Case& wrong :
       {Case{"hi\n",
             "the other side did not send the greeting of the migration protocol, but \"hi?\""},
        Case{"\x89STSgim\n1234",
             "the other side did not send the greeting of the migration protocol, but "
             "\"\x89STSgim?1234\""},
        Case{Greeting(2),
             "the other side uses version 2 of the migration protocol, this one version 1"}}) {
    auto [ours, theirs] = testing::Sockets();
    ASSERT_TRUE(WriteAll(theirs.output.get(), wrong.greeting));
    const auto channel = Channel::Open(std::move(ours.input), std::move(ours.output), {});
    EXPECT_ERROR(channel, Code::kFailedPrecondition, wrong.message);
    EXPECT_NE(channel.error().hint, "");
  }
}

TEST(ChannelTest, WaitsForAGreetingWithinItsLimits) {
  auto [ours, theirs] = testing::Sockets();
  EXPECT_CODE(Channel::Open(std::move(ours.input), std::move(ours.output), Within(10)),
              Code::kDeadlineExceeded);
}

TEST(ChannelTest, ReportsAProgramThatEndsWithoutAGreeting) {
  auto [ours, theirs] = testing::Sockets();
  theirs = {};
  EXPECT_ERROR(Channel::Open(std::move(ours.input), std::move(ours.output), {}), Code::kUnavailable,
               kClosed);
}

}  // namespace
}  // namespace stasis::migration
