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
#include "base/file.h"
#include "criu/files.pb.h"

namespace stasis::criu {
namespace {

constexpr uint32_t kInetSocket = 4, kTcp = 6, kUdp = 17;

image::FileEntry Socket(int family, uint32_t proto, uint32_t port,
                        const std::vector<uint32_t>& address) {
  image::FileEntry file;
  file.set_type(kInetSocket);
  auto* socket = file.mutable_isk();
  socket->set_family(static_cast<uint32_t>(family));
  socket->set_proto(proto);
  socket->set_state(TCP_LISTEN);
  socket->set_src_port(port);
  socket->set_dst_port(0);
  for (uint32_t word : address) socket->add_src_addr(word);
  return file;
}

std::string Image(const std::vector<image::FileEntry>& files) {
  std::string bytes;
  auto append = [&](uint32_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  append(0x54564319);
  append(0x56303138);
  for (const auto& file : files) {
    append(static_cast<uint32_t>(file.ByteSizeLong()));
    bytes += file.SerializeAsString();
  }
  return bytes;
}

Result<std::vector<TcpPort>> PortsOf(const std::string& bytes) {
  UniqueFd file(::memfd_create("files.img", MFD_CLOEXEC));
  STASIS_TRY(WriteAll(file.get(), bytes));
  return TcpPortsToBind(file.get(), bytes.size());
}

std::vector<std::string> Names(const std::vector<image::FileEntry>& files) {
  auto ports = PortsOf(Image(files));
  if (!ports) return {ports.error().ToString()};
  std::vector<std::string> names;
  for (const auto& port : *ports) names.push_back(ToString(port));
  return names;
}

TEST(TcpPorts, IncludeAllBoundSockets) {
  const uint32_t local = htonl(INADDR_LOOPBACK);
  image::FileEntry connection = Socket(AF_INET, kTcp, 1, {local});
  connection.mutable_isk()->set_dst_port(2);
  image::FileEntry no_socket;
  no_socket.set_type(1);
  EXPECT_EQ(Names({connection, no_socket, Socket(AF_INET, kUdp, 3, {local}),
                   Socket(AF_INET, kTcp, 0, {0}), Socket(AF_INET, kTcp, 4711, {local}),
                   Socket(AF_INET, kTcp, 4711, {local})}),
            std::vector<std::string>{"127.0.0.1:4711"});
  EXPECT_EQ(Names({Socket(AF_INET, kTcp, 80, {0})}), std::vector<std::string>{"0.0.0.0:80"});
  EXPECT_EQ(Names({Socket(AF_INET6, kTcp, 65535, {0, 0, 0, htonl(1)})}),
            std::vector<std::string>{"[::1]:65535"});
}

TEST(TcpPorts, AnUnknownFormatIsRejected) {
  const uint32_t any = 0;
  const std::vector<image::FileEntry> bad = {
      Socket(AF_INET, kTcp, 65536, {any}), Socket(AF_INET6, kTcp, 80, {any}),
      Socket(AF_INET, kTcp, 80, {}), Socket(AF_UNIX, kTcp, 80, {any})};
  for (const auto& file : bad) EXPECT_FALSE(PortsOf(Image({file})));
  std::string bytes = Image({Socket(AF_INET, kTcp, 80, {any})});
  for (size_t size = 9; size < bytes.size(); ++size) {
    EXPECT_FALSE(PortsOf(bytes.substr(0, size))) << size;
  }
  EXPECT_FALSE(PortsOf(""));
}

// A large image, like that of a program with a million files. It is read in parts, and some entries
// lie in two parts.
TEST(TcpPorts, AreFoundInAnImageOfAnySize) {
  std::vector<image::FileEntry> files;
  for (int i = 0; i < 70; ++i) {
    files.push_back(Socket(AF_INET, kTcp, static_cast<uint32_t>(4711 + i), {0}));
    files.back().mutable_isk()->set_ifname(std::string(1'000'000 + static_cast<size_t>(i), 'x'));
  }
  EXPECT_EQ(Names(files).size(), 70u);
}

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
  TcpPort port_;
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
