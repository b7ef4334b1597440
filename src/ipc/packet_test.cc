#include "ipc/packet.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>
#include <vector>

#include "ipc/message.h"
#include "ipc/socket.h"

namespace stasis::ipc {
namespace {

int Null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Returns the lowest free descriptor. It is the same before and after a call that leaks none.
int FreeDescriptor() {
  const int fd = Null();
  ::close(fd);
  return fd;
}

class PacketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pair_ = *MakeSocketPair();
    null_.Reset(Null());
  }
  std::vector<int> Copies(size_t count) { return std::vector<int>(count, null_.get()); }

  SocketPair pair_;
  UniqueFd null_;
};

TEST_F(PacketTest, BytesAndDescriptorsArrive) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{kMaxDescriptors}}) {
    SCOPED_TRACE(count);
    const auto fds = Copies(count);
    ASSERT_TRUE(SendPacket(pair_.ours.get(), "hello", 5, fds));
    char bytes[16] = {};
    auto packet = ReceivePacket(pair_.theirs.get(), bytes, sizeof bytes);
    ASSERT_TRUE(packet);
    EXPECT_EQ(packet->size, 5u);
    EXPECT_STREQ(bytes, "hello");
    EXPECT_FALSE(packet->fds_lost);
    ASSERT_EQ(packet->fds.size(), count);
    for (const UniqueFd& fd : packet->fds) {
      EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
    }
  }
}

TEST_F(PacketTest, TooManyDescriptorsAreAnError) {
  EXPECT_FALSE(SendPacket(pair_.ours.get(), "x", 1, Copies(kMaxDescriptors + 1)));
  EXPECT_EQ(SendWithDescriptors(pair_.ours.get(), "x", 1, Copies(kMaxDescriptors + 1).data(),
                                kMaxDescriptors + 1, 0),
            -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(PacketTest, DescriptorsWithoutRoomAreClosed) {
  const int free = FreeDescriptor();
  ASSERT_TRUE(SendPacket(pair_.ours.get(), "x", 1, Copies(5)));
  char byte;
  int fds[3];
  const ReceivedPacket packet =
      ReceiveWithDescriptors(pair_.theirs.get(), &byte, 1, fds, std::size(fds), 0);
  EXPECT_EQ(packet.size, 1);
  EXPECT_EQ(packet.count, 3u);
  EXPECT_TRUE(packet.descriptors_lost);
  for (int fd : fds) ::close(fd);
  EXPECT_EQ(FreeDescriptor(), free);
}

TEST_F(PacketTest, AFullDescriptorTableIsReported) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(SendPacket(pair_.ours.get(), "x", 1, Copies(5)));
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(FreeDescriptor()) + 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  char byte;
  auto packet = ReceivePacket(pair_.theirs.get(), &byte, 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(packet);
  EXPECT_TRUE(packet->fds_lost);
  EXPECT_EQ(packet->fds.size(), 2u);
}

TEST_F(PacketTest, ALongPacketTellsItsSize) {
  ASSERT_TRUE(SendPacket(pair_.ours.get(), "0123456789", 10));
  char bytes[4];
  auto packet = ReceivePacket(pair_.theirs.get(), bytes, sizeof bytes);
  ASSERT_TRUE(packet);
  EXPECT_EQ(packet->size, 10u);
}

TEST_F(PacketTest, AClosedSocketIsTheEnd) {
  pair_.ours.Reset();
  char byte;
  auto packet = ReceivePacket(pair_.theirs.get(), &byte, 1);
  ASSERT_TRUE(packet);
  EXPECT_EQ(packet->size, 0u);
  auto sent = SendPacket(pair_.theirs.get(), "x", 1);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().raw, EPIPE);
}

TEST_F(PacketTest, WaitingEndsAtTheDeadline) {
  EXPECT_FALSE(AwaitReadable(pair_.ours.get(), Deadline::In(std::chrono::milliseconds(10))));
  ASSERT_TRUE(SendPacket(pair_.theirs.get(), "x", 1));
  EXPECT_TRUE(AwaitReadable(pair_.ours.get(), {}));
}

TEST(AddressTest, ALongNameIsAnError) {
  EXPECT_TRUE(AddressIn(3, std::string(60, 'x')));
  EXPECT_FALSE(AddressIn(3, std::string(200, 'x')));
}

TEST(MessageTest, TextsAreTruncatedAndTerminated) {
  char text[8];
  std::fill(std::begin(text), std::end(text), 'x');
  EXPECT_FALSE(IsTerminated(text));
  PutText(text, "a long text");
  EXPECT_STREQ(text, "a long ");
  PutText(text, "ab");
  EXPECT_EQ(std::accumulate(text + 2, text + 8, 0), 0);
}

}  // namespace
}  // namespace stasis::ipc
