#include "criu/tcp_ports.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <thread>

#include "base/fd.h"

namespace stasis::criu {
namespace {

// A socket that listens without SO_REUSEADDR, and one connection that this side closed first.
class ClosedFirst : public testing::Test {
 protected:
  void SetUp() override {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(listener_.get(), any, size), 0);
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener_.get(), any, &size), 0);
    UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(client.get(), any, size), 0);
    UniqueFd(::accept(listener_.get(), nullptr, nullptr)).Reset();
    char end;
    ASSERT_EQ(::recv(client.get(), &end, 1, 0), 0);
    port_.family = AF_INET;
    port_.port = ntohs(address.sin_port);
    port_.address = ToTcpAddress(AF_INET, &address.sin_addr.s_addr);
  }

  std::vector<TcpSocket> Sockets() const {
    return TcpSockets::Open().value().WithLocalPort(port_.port).value();
  }
  bool Remembered() const {
    auto sockets = Sockets();
    return std::any_of(sockets.begin(), sockets.end(),
                       [](const auto& socket) { return socket.only_remembered(); });
  }
  Status Free(const Deadline& deadline, bool cancelled) const {
    auto freed = FreeTcpPorts({port_}, deadline, [=] { return cancelled; });
    return freed ? Status() : Fail(std::move(freed).error());
  }

  UniqueFd listener_;
  InetPort port_;
};

TEST_F(ClosedFirst, IsNotDroppedWithoutTimeOrWhenCancelled) {
  listener_.Reset();
  ASSERT_TRUE(Remembered());
  Status late = Free(Deadline::In(std::chrono::milliseconds(0)), false);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kDeadlineExceeded) << late.error().ToString();
  Status cancelled = Free(Deadline(), true);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, Code::kCancelled) << cancelled.error().ToString();
  EXPECT_TRUE(Remembered());
}

TEST_F(ClosedFirst, IsNotDroppedWhileTheListenerExists) {
  ASSERT_TRUE(Remembered());
  Status held = Free(Deadline(), false);
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code, Code::kAlreadyExists) << held.error().ToString();
  EXPECT_TRUE(Remembered());
}

TEST_F(ClosedFirst, DestroyingAReusedAddressSucceeds) {
  auto kernel = TcpSockets::Open();
  ASSERT_TRUE(kernel);
  for (TcpSocket socket : Sockets()) {
    socket.id.idiag_cookie[0] ^= 1;
    Status destroyed = kernel->Destroy(socket);
    if (!destroyed && destroyed.error().code == Code::kPermissionDenied) {
      GTEST_SKIP() << "needs CAP_NET_ADMIN";
    }
    EXPECT_TRUE(destroyed) << destroyed.error().ToString();
  }
  EXPECT_TRUE(Remembered());
}

// Makes socket(AF_NETLINK) fail in this thread, like container runtimes do.
void RefuseNetlink() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(code), code};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(ClosedFirst, IsNamedByItsPortWithoutSockDiag) {
  std::thread([&] {
    RefuseNetlink();
    Status unseen = Free(Deadline(), false);
    ASSERT_FALSE(unseen);
    EXPECT_EQ(unseen.error().code, Code::kAlreadyExists);
    EXPECT_NE(unseen.error().message.find(ToString(port_)), std::string::npos);
    EXPECT_NE(unseen.error().message.find("sock_diag"), std::string::npos);
    EXPECT_FALSE(unseen.error().hint.empty());
  }).join();
}

}  // namespace
}  // namespace stasis::criu
