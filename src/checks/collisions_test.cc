#include "checks/collisions.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"

namespace stasis::checks {
namespace {

using ::testing::HasSubstr;

class Collisions : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { (void)RemoveTree(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string NewFile(const std::string& name) const {
    UniqueFd fd(::open(Path(name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    EXPECT_EQ(::ftruncate(fd.get(), 4096), 0);
    return Path(name);
  }
  static std::string Myself() { return "process " + std::to_string(::getpid()) + " ("; }

  std::string folder_ = testing::TempDir() + "collisions-XXXXXX";
};

criu::InetPort LocalPort(uint16_t number) {
  const uint32_t local = htonl(INADDR_LOOPBACK);
  criu::InetPort port;
  port.family = AF_INET;
  port.address = criu::ToTcpAddress(AF_INET, &local);
  port.port = number;
  return port;
}

// Claims the names in a child process, and returns the error there, or an empty text.
std::string ClaimElsewhere(const std::string& path, const criu::RestoredNames& names) {
  int pipe[2];
  EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  UniqueFd read_end(pipe[0]), write_end(pipe[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    auto claims = NameClaims::Open(path);
    const Status claimed = claims ? claims->Claim(names) : Fail(claims.error());
    if (!claimed) (void)WriteAll(write_end.get(), claimed.error().message);
    ::_exit(0);
  }
  write_end.Reset();
  std::string text(4096, '\0');
  text.resize(
      static_cast<size_t>(std::max<ssize_t>(0, ::read(read_end.get(), text.data(), text.size()))));
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  return text;
}

TEST_F(Collisions, ANameIsClaimedByOneRestoreAtATime) {
  const std::string path = Path("lock");
  criu::RestoredNames tcp, shared, socket, other;
  tcp.tcp = {LocalPort(4711)};
  shared = tcp;
  shared.tcp[0].shared = true;
  socket.unix_sockets = {{"/run/x.sock", "/run/x.sock"}};
  other.tcp = {LocalPort(4712)};
  other.udp = {LocalPort(4711)};
  {
    auto claims = NameClaims::Open(path);
    ASSERT_TRUE(claims);
    ASSERT_TRUE(claims->Claim(tcp));
    ASSERT_TRUE(claims->Claim(socket));
    EXPECT_EQ(ClaimElsewhere(path, tcp), "another restore, process " + std::to_string(::getpid()) +
                                             ", is taking the program's port 127.0.0.1:4711");
    EXPECT_THAT(ClaimElsewhere(path, socket), HasSubstr("Unix socket /run/x.sock"));
    EXPECT_EQ(ClaimElsewhere(path, shared), "");
    EXPECT_EQ(ClaimElsewhere(path, other), "");
  }
  EXPECT_EQ(ClaimElsewhere(path, tcp), "");
}

TEST_F(Collisions, AListenerIsReportedEvenIfItsPortCanBeBound) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // As CRIU does.
  int flag = 1;
  ASSERT_EQ(::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEPORT, &flag, sizeof flag), 0);
  ASSERT_EQ(::bind(listener.get(), any, size), 0);
  ASSERT_EQ(::getsockname(listener.get(), any, &size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  flag = 0;
  ASSERT_EQ(::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEPORT, &flag, sizeof flag), 0);
  criu::RestoredNames names;
  names.tcp = {LocalPort(ntohs(address.sin_port))};
  Status found = CheckSocketNamesFree(names);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("in use by " + Myself()));
  names.tcp[0].shared = true;
  EXPECT_TRUE(CheckSocketNamesFree(names));
}

TEST_F(Collisions, AUdpPortInUseIsReported) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  UniqueFd receiver(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(receiver.get(), any, size), 0);
  ASSERT_EQ(::getsockname(receiver.get(), any, &size), 0);
  criu::RestoredNames names;
  names.udp = {LocalPort(ntohs(address.sin_port))};
  Status found = CheckSocketNamesFree(names);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("UDP port 127.0.0.1:"));
  EXPECT_THAT(found.error().message, HasSubstr("in use by " + Myself()));
  names.udp[0].shared = true;
  EXPECT_TRUE(CheckSocketNamesFree(names));
  names.udp[0].shared = false;
  receiver.Reset();
  EXPECT_TRUE(CheckSocketNamesFree(names));
}

TEST_F(Collisions, AUnixSocketIsInUseWhileItsFileExists) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = Path("s");
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  criu::RestoredNames names;
  names.unix_sockets = {{path, path}};
  Status found = CheckSocketNamesFree(names);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr(path + " is in use by " + Myself()));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_TRUE(CheckSocketNamesFree(names));
}

TEST_F(Collisions, AFileIsReportedWhileAProcessWritesIt) {
  const std::string path = NewFile("data");
  auto check = [&] { return CheckFilesNotWritten({path, "/dev/null", Path("none")}, Deadline()); };
  auto expect_held = [&] {
    auto found = check();
    ASSERT_FALSE(found);
    EXPECT_THAT(found.error().message, HasSubstr(path));
    // This process, or the child in which the check runs and which has inherited the file.
    EXPECT_THAT(found.error().message, HasSubstr("in use by process "));
    EXPECT_THAT(found.error().message, HasSubstr("(checks_test)"));
    EXPECT_THAT(found.error().hint, HasSubstr("--share-files"));
  };
  UniqueFd reader(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto files = check();
  ASSERT_TRUE(files);
  ASSERT_EQ(files->size(), 1u);
  EXPECT_EQ(files->front().path, path);

  UniqueFd writer(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  expect_held();
  void* mapped = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  writer.Reset();
  expect_held();
  ASSERT_EQ(::munmap(mapped, 4096), 0);
  EXPECT_TRUE(check());
}

}  // namespace
}  // namespace stasis::checks
