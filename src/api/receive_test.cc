#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "api/migrate.h"
#include "api/migration_link.h"
#include "base/thread.h"
#include "migration/testing/peers.h"

namespace stasis::api {
namespace {

// Sends a first message whose answer cannot be sent. Returns the result of the receiver.
Status ReceiveUnanswered() {
  auto [ours, theirs] = migration::testing::Sockets();
  const UniqueFd socket(::dup(ours.output.get()));
  Status received;
  auto receiver = Thread::Start([&received, &end = theirs] {
    Call call;
    received = ReceiveMigration(call, std::move(end.input), std::move(end.output));
  });
  EXPECT_TRUE(receiver);
  {
    auto link = MigrationLink::Open(std::move(ours.input), std::move(ours.output), {});
    EXPECT_TRUE(link);
    EXPECT_EQ(::shutdown(socket.get(), SHUT_RD), 0);
    v1::MigrationBegin begin;
    begin.set_stasis_version("another");
    EXPECT_TRUE((*link)->Send(MessageKind::kBegin, begin, {}));
  }
  receiver->Join();
  return received;
}

TEST(ReceiveTest, AnErrorThatCannotBeSentIsReturned) {
  const Status received = ReceiveUnanswered();
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, Code::kFailedPrecondition);
}

TEST(ReceiveTest, AClosedConnectionIsTheEnd) {
  auto [ours, theirs] = migration::testing::Sockets();
  auto sender = Thread::Start([&end = ours] {
    EXPECT_TRUE(MigrationLink::Open(std::move(end.input), std::move(end.output), {}));
  });
  ASSERT_TRUE(sender);
  Call call;
  const Status received = ReceiveMigration(call, std::move(theirs.input), std::move(theirs.output));
  EXPECT_TRUE(received) << received.error().ToString();
  sender->Join();
}

}  // namespace
}  // namespace stasis::api
