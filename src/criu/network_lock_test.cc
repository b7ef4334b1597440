#include "criu/network_lock.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <cerrno>
#include <functional>
#include <thread>

#include "base/fd.h"
#include "criu/testing_connections.h"

namespace stasis::criu {
namespace {

constexpr uint16_t kHere = 4711, kThere = 4712;

const auto kClient = ConnectionEnd("127.0.0.1", kHere, "127.0.0.1", kThere);
const auto kServer = ConnectionEnd("127.0.0.1", kThere, "127.0.0.1", kHere);

// Returns false if this user may not have network namespaces.
bool EnterNewNetwork() {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  loopback.ifr_name[0] = 'l';
  loopback.ifr_name[1] = 'o';
  loopback.ifr_flags = IFF_UP;
  return ::ioctl(any.get(), SIOCSIFFLAGS, &loopback) == 0;
}

// Returns the error with which a connection between the two addresses fails, at which nobody
// listens. The kernel reports ECONNREFUSED at once, unless the packets are dropped.
int Connect() {
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{0, 50'000};
  const int yes = 1;
  ::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  ::setsockopt(client.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(kHere);
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(::bind(client.get(), any, sizeof address), 0);
  address.sin_port = htons(kThere);
  return ::connect(client.get(), any, sizeof address) == 0 ? 0 : errno;
}
bool IsBlocked() {
  const int error = Connect();
  EXPECT_TRUE(error == EINPROGRESS || error == ECONNREFUSED) << error;
  return error == EINPROGRESS;
}

// Runs `test` in a network of its own.
class NetworkLockTest : public testing::Test {
 protected:
  static void InOwnNetwork(const std::function<void()>& test) {
    bool is_there = false;
    std::thread([&] {
      is_there = EnterNewNetwork();
      if (is_there) test();
    }).join();
    if (!is_there) GTEST_SKIP() << "needs root";
  }
  static RestoreLock Make(const ForgedImages& images) {
    auto lock = RestoreLock::Make(images.path());
    EXPECT_TRUE(lock) << lock.error().ToString();
    if (!lock) return {};
    EXPECT_EQ(lock->note(), "");
    return std::move(*lock);
  }
  static void End(RestoreLock& lock) {
    Status ended = lock.End();
    EXPECT_TRUE(ended) << ended.error().ToString();
  }
};

TEST_F(NetworkLockTest, BlocksUntilTheEndOfTheRestore) {
  InOwnNetwork([] {
    const ForgedImages images({kClient, kServer});
    EXPECT_FALSE(IsBlocked());
    RestoreLock lock = Make(images);
    EXPECT_TRUE(IsBlocked());
    End(lock);
    EXPECT_FALSE(IsBlocked());
    End(lock);
  });
}

TEST_F(NetworkLockTest, TheEndAcceptsThatCriuHasRemovedIt) {
  InOwnNetwork([] {
    const ForgedImages images({kClient, kServer});
    RestoreLock lock = Make(images);
    EXPECT_EQ(ReleaseAfterDump(ReadKeptConnections(images.path())), "");
    EXPECT_FALSE(IsBlocked());
    End(lock);
  });
}

TEST_F(NetworkLockTest, ALeftLockIsUsedAndRemoved) {
  InOwnNetwork([] {
    const ForgedImages images({kClient, kServer});
    Make(images);
    RestoreLock second = Make(images);
    EXPECT_TRUE(IsBlocked());
    End(second);
    EXPECT_FALSE(IsBlocked());
  });
}

TEST_F(NetworkLockTest, StaysForAConnectionToAnotherProgram) {
  InOwnNetwork([] {
    const ForgedImages images({kClient});
    Make(images);
    const std::string left = ReleaseAfterDump(ReadKeptConnections(images.path()));
    for (const std::string& part :
         {std::string("the TCP connection 127.0.0.1:4711 to 127.0.0.1:4712 leads to another"),
          std::string("`nft delete table inet ") + kTable, std::string("until the program is")}) {
      EXPECT_NE(left.find(part), std::string::npos) << left;
    }
    RestoreLock second = Make(images);
    End(second);  // after a restore that failed
    EXPECT_TRUE(IsBlocked());
  });
}

TEST_F(NetworkLockTest, OfIpv6IsAcceptedByTheKernel) {
  InOwnNetwork([] {
    const ForgedImages images(
        {ConnectionEnd("::1", 1, "fe80::2", 2),
         ConnectionEnd("::ffff:127.0.0.1", kHere, "::ffff:127.0.0.1", kThere)});
    Make(images);
    EXPECT_TRUE(IsBlocked());
  });
}

TEST_F(NetworkLockTest, HasRoomForThousandsOfConnections) {
  InOwnNetwork([] {
    std::vector<image::FileEntry> all{kClient, kServer};
    for (uint32_t port = 20000; port < 25000; ++port) {
      all.push_back(ConnectionEnd("127.0.0.1", port, "127.0.0.1", 1));
      all.push_back(ConnectionEnd("127.0.0.1", 1, "127.0.0.1", port));
    }
    RestoreLock lock = Make(ForgedImages(all));
    EXPECT_TRUE(IsBlocked());
    End(lock);
    EXPECT_FALSE(IsBlocked());
  });
}

TEST_F(NetworkLockTest, OfIptablesStaysWithANote) {
  const ForgedImages images({kClient, kServer});
  images.SetInventory(0, kRunId);
  const std::string left = ReleaseAfterDump(ReadKeptConnections(images.path()));
  EXPECT_NE(left.find("iptables -D"), std::string::npos) << left;
  images.SetInventory(2, kRunId);
  EXPECT_EQ(ReleaseAfterDump(ReadKeptConnections(images.path())), "");
}

TEST_F(NetworkLockTest, UnreadableImagesAreANoteAfterADump) {
  const std::string left = ReleaseAfterDump(ReadKeptConnections("/nonexistent"));
  EXPECT_NE(left.find("nft list tables"), std::string::npos) << left;
}

// Drops all capabilities of this thread.
void DropCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  ASSERT_EQ(::syscall(SYS_capset, &header, none), 0);
}

TEST_F(NetworkLockTest, WithoutRightsOnlyUnsentDataIsAnError) {
  std::thread([] {
    DropCapabilities();
    const ForgedImages sent({kClient, kServer});
    auto lock = RestoreLock::Make(sent.path());
    ASSERT_TRUE(lock) << lock.error().ToString();
    EXPECT_NE(lock->note().find("were not blocked"), std::string::npos) << lock->note();
    EXPECT_TRUE(lock->End());
    const ForgedImages unsent({kClient, kServer}, 1);
    auto failed = RestoreLock::Make(unsent.path());
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, Code::kPermissionDenied) << failed.error().ToString();
    const std::string left = ReleaseAfterDump(ReadKeptConnections(sent.path()));
    EXPECT_NE(left.find("could not be removed"), std::string::npos) << left;
  }).join();
}

}  // namespace
}  // namespace stasis::criu
