#include "agent_protocol/packet.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "base/fd.h"
#include "ipc/packet.h"

namespace stasis::agent_protocol {
namespace {

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class Pair : public ::testing::Test {
 protected:
  Pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    here.Reset(ends[0]);
    there.Reset(ends[1]);
    null.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  Io Receive1() { return Receive(there.get(), &packet, fds, &count, 0); }

  // Sends bytes as they are, with `n` descriptors.
  void Raw(const void* bytes, size_t size, uint32_t n) {
    const std::vector<int> passed(n, null.get());
    ASSERT_EQ(ipc::SendWithDescriptors(here.get(), bytes, size, passed.data(), n, 0),
              ssize_t(size));
  }

  UniqueFd here, there, null;
  Packet packet;
  int fds[kMaxBatch];
  uint32_t count = 0;
};

TEST_F(Pair, ABatchArrivesWithItsDescriptors) {
  Ranges ranges{};
  ranges.count = kMaxBatch;
  ranges.total = 1000;
  ranges.first = 400;
  ranges.ranges[199].address = 77;
  std::vector<int> sent(kMaxBatch, null.get());
  size_t before = OpenDescriptors();
  ASSERT_EQ(Send(here.get(), &ranges, Type::kMap, sizeof(ranges), sent.data(), kMaxBatch, 0),
            Io::kOk);
  ASSERT_EQ(Receive1(), Io::kOk);
  EXPECT_EQ(count, kMaxBatch);
  EXPECT_EQ(packet.ranges.first, 400u);
  EXPECT_EQ(packet.ranges.ranges[199].address, 77u);
  EXPECT_NE(fcntl(fds[0], F_GETFD) & FD_CLOEXEC, 0);
  CloseAll(fds, count);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(Pair, ReportsATimeoutAndADisconnectedPeer) {
  EXPECT_EQ(Receive1(), Io::kTimeout);
  here.Reset();
  EXPECT_EQ(Receive1(), Io::kEnd);
}

TEST_F(Pair, TheTypeOfTheNextPacketIsReadWithoutTakingIt) {
  EXPECT_EQ(FirstType(there.get()), Type{});
  WatchRequest request{};
  ASSERT_EQ(Send(here.get(), &request, Type::kWatch, sizeof(request), nullptr, 0, 0), Io::kOk);
  EXPECT_EQ(FirstType(there.get()), Type::kWatch);
  ASSERT_EQ(Receive1(), Io::kOk);
  EXPECT_EQ(packet.header.type, Type::kWatch);
  Raw("short", 5, 0);
  EXPECT_EQ(FirstType(there.get()), Type{});
  EXPECT_EQ(Receive1(), Io::kBad);
  here.Reset();
  EXPECT_EQ(FirstType(there.get()), Type{});
}

// The receiver rejects each of these packets and closes the descriptors that came with it.
TEST_F(Pair, InvalidPacketsAreRejected) {
  size_t before = OpenDescriptors();
  auto header = [](Type type, uint32_t length) {
    return Header{kMagic, kVersion, type, length, 0};
  };
  Header h = header(Type::kHello, sizeof(Header));

  h.magic ^= 1;
  Raw(&h, sizeof(h), 3);
  EXPECT_EQ(Receive1(), Io::kBad) << "magic";
  h = header(Type::kHello, sizeof(Header));
  h.version += 1;
  Raw(&h, sizeof(h), 0);
  EXPECT_EQ(Receive1(), Io::kBad) << "version";
  h = header(Type::kHello, sizeof(Header));
  Raw(&h, sizeof(h), 1);
  EXPECT_EQ(Receive1(), Io::kBad) << "descriptors with a type that has none";
  Raw(&h, sizeof(h) - 1, 0);
  EXPECT_EQ(Receive1(), Io::kBad) << "too short";
  h = header(Type::kClose, sizeof(Header));
  Raw(&h, sizeof(h), 0);
  EXPECT_EQ(Receive1(), Io::kBad) << "shorter than the struct of its type";
  h = header(Type(999), sizeof(Header));
  Raw(&h, sizeof(h), 0);
  EXPECT_EQ(Receive1(), Io::kBad) << "type";
  std::string large(sizeof(Packet) + 1, 'x');
  Raw(large.data(), large.size(), 0);
  EXPECT_EQ(Receive1(), Io::kBad) << "larger than any packet";

  Ranges ranges{};
  auto as = [&](uint32_t first, uint32_t n, uint32_t total, uint32_t length) {
    ranges.header = header(Type::kMap, length);
    ranges.first = first;
    ranges.count = n;
    ranges.total = total;
  };
  constexpr uint32_t kTwo = offsetof(Ranges, ranges) + 2 * sizeof(Range);
  as(0, 2, 2, kTwo);
  Raw(&ranges, kTwo, 1);
  EXPECT_EQ(Receive1(), Io::kBad) << "fewer descriptors than ranges";
  as(0, 3, 3, kTwo);
  Raw(&ranges, kTwo, 3);
  EXPECT_EQ(Receive1(), Io::kBad) << "fewer ranges than its count";
  as(5, 2, 6, kTwo);
  Raw(&ranges, kTwo, 2);
  EXPECT_EQ(Receive1(), Io::kBad) << "ranges beyond the total";
  as(0, 2, kMaxRanges + 1, kTwo);
  Raw(&ranges, kTwo, 2);
  EXPECT_EQ(Receive1(), Io::kBad) << "too many ranges";
  as(0, 0xFFFFFFFF, 2, kTwo);
  Raw(&ranges, kTwo, 2);
  EXPECT_EQ(Receive1(), Io::kBad) << "a count of 2^32 - 1";
  as(0, kMaxBatch, kMaxBatch, sizeof(Ranges));
  Raw(&ranges, sizeof(ranges), 250);
  EXPECT_EQ(Receive1(), Io::kBad) << "more descriptors than a batch may have";
  EXPECT_EQ(OpenDescriptors(), before);
}

// A valid packet with some bytes changed is either rejected or still within bounds.
TEST_F(Pair, CorruptedPacketsAreRejectedOrWithinBounds) {
  size_t before = OpenDescriptors();
  std::mt19937 random(4711);
  for (int i = 0; i < 20000; ++i) {
    Ranges ranges{};
    ranges.count = random() % 4;
    ranges.total = 4;
    size_t length = offsetof(Ranges, ranges) + ranges.count * sizeof(Range);
    ranges.header = {kMagic, kVersion, Type::kRanges, uint32_t(length), 0};
    auto* bytes = reinterpret_cast<unsigned char*>(&ranges);
    uint32_t n = ranges.count;
    for (int change = 0; change < 2; ++change) bytes[random() % 32] = uint8_t(random());
    Raw(&ranges, length, n);
    Io io = Receive1();
    ASSERT_TRUE(io == Io::kOk || io == Io::kBad);
    if (io == Io::kOk && packet.header.type == Type::kRanges) {
      ASSERT_EQ(packet.ranges.count, count);
      ASSERT_LE(packet.ranges.first + packet.ranges.count, packet.ranges.total);
    }
    if (io == Io::kOk) CloseAll(fds, count);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(Pair, TheControlSocketAcceptsOneSocketAndNothingElse) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  size_t before = OpenDescriptors();
  ASSERT_EQ(SendClientSocket(here.get(), ends[0]), Io::kOk);
  int got = ReceiveClientSocket(there.get());
  ASSERT_GE(got, 0);
  close(got);
  ASSERT_EQ(SendClientSocket(here.get(), null.get()), Io::kOk);
  EXPECT_EQ(ReceiveClientSocket(there.get()), -1);
  char one = 1;
  Raw(&one, 1, 3);
  EXPECT_EQ(ReceiveClientSocket(there.get()), -1);
  Raw("xyz", 3, 1);
  EXPECT_EQ(ReceiveClientSocket(there.get()), -1);
  EXPECT_EQ(ReceiveClientSocket(there.get()), -1) << "no message is pending";
  EXPECT_EQ(OpenDescriptors(), before);
  CloseAll(ends, 2);
}

TEST_F(Pair, ASocketKeepsItsMark) {
  EXPECT_EQ(SocketMark(here.get()), 0u);
  ASSERT_TRUE(SetSocketMark(here.get(), 123456789));
  EXPECT_EQ(SocketMark(here.get()), 123456789u);
  EXPECT_EQ(SocketMark(there.get()), 0u);
  EXPECT_EQ(SocketMark(null.get()), 0u);
}

}  // namespace
}  // namespace stasis::agent_protocol
