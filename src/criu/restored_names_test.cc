#include "criu/restored_names.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>

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

Result<RestoredNames> Read(const std::string& bytes) {
  UniqueFd file(::memfd_create("files.img", MFD_CLOEXEC));
  STASIS_TRY(WriteAll(file.get(), bytes));
  return ReadRestoredNames(file.get(), bytes.size());
}

std::vector<std::string> TcpNames(const std::vector<image::FileEntry>& files) {
  auto read = Read(Image(files));
  if (!read) return {read.error().ToString()};
  std::vector<std::string> names;
  for (const auto& port : read->tcp) names.push_back(ToString(port));
  return names;
}

TEST(RestoredNames, IncludeThePortsOfAllBoundSockets) {
  const uint32_t local = htonl(INADDR_LOOPBACK);
  image::FileEntry connection = Socket(AF_INET, kTcp, 1, {local});
  connection.mutable_isk()->set_dst_port(2);
  image::FileEntry no_socket;
  no_socket.set_type(1);
  EXPECT_EQ(TcpNames({connection, no_socket, Socket(AF_INET, kUdp, 3, {local}),
                      Socket(AF_INET, kTcp, 0, {0}), Socket(AF_INET, kTcp, 4711, {local}),
                      Socket(AF_INET, kTcp, 4711, {local})}),
            std::vector<std::string>{"127.0.0.1:4711"});
  EXPECT_EQ(TcpNames({Socket(AF_INET, kTcp, 80, {0})}), std::vector<std::string>{"0.0.0.0:80"});
  EXPECT_EQ(TcpNames({Socket(AF_INET6, kTcp, 65535, {0, 0, 0, htonl(1)})}),
            std::vector<std::string>{"[::1]:65535"});
}

TEST(RestoredNames, AnUnknownFormatIsRejected) {
  const uint32_t any = 0;
  const std::vector<image::FileEntry> bad = {
      Socket(AF_INET, kTcp, 65536, {any}), Socket(AF_INET6, kTcp, 80, {any}),
      Socket(AF_INET, kTcp, 80, {}), Socket(AF_UNIX, kTcp, 80, {any})};
  for (const auto& file : bad) EXPECT_FALSE(Read(Image({file})));
  std::string bytes = Image({Socket(AF_INET, kTcp, 80, {any})});
  for (size_t size = 9; size < bytes.size(); ++size) {
    EXPECT_FALSE(Read(bytes.substr(0, size))) << size;
  }
  EXPECT_FALSE(Read(""));
}

TEST(SetPidNamespace, RenamesTheDriversSocketOnly) {
  auto unix_socket = [](const std::string& name) {
    image::FileEntry file;
    file.set_type(5);
    file.mutable_usk()->set_type(SOCK_STREAM);
    file.mutable_usk()->set_state(TCP_LISTEN);
    file.mutable_usk()->set_name(name);
    return file;
  };
  using namespace std::string_literals;
  std::string folder = ::testing::TempDir() + "set-pid-namespace-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/files.img";
  const image::FileEntry port = Socket(AF_INET, kTcp, 80, {0});
  const std::string before =
      Image({port, unix_socket("\0cuda-uvmfd-4026531836-1140\0"s), unix_socket("\0cuda-uvmfd-"s),
             unix_socket("\0other-4026531836-1"s), unix_socket("cuda-uvmfd-1-2")});
  ASSERT_TRUE(WriteFileDurably(path, before));
  ASSERT_TRUE(SetPidNamespace(folder, 12));
  auto after = ReadFile(path, before.size());
  ASSERT_TRUE(after);
  EXPECT_EQ(*after,
            Image({port, unix_socket("\0cuda-uvmfd-12-1140\0"s), unix_socket("\0cuda-uvmfd-"s),
                   unix_socket("\0other-4026531836-1"s), unix_socket("cuda-uvmfd-1-2")}));
  auto names = Read(*after);
  ASSERT_TRUE(names);
  int of_driver = 0;
  for (const auto& name : names->unix_sockets) of_driver += name.IsOfDriver();
  EXPECT_EQ(of_driver, 2);
  std::filesystem::remove_all(folder);
}

// A large image, like that of a program with a million files. It is read in parts, and some entries
// lie in two parts.
TEST(RestoredNames, AreFoundInAnImageOfAnySize) {
  std::vector<image::FileEntry> files;
  for (int i = 0; i < 70; ++i) {
    files.push_back(Socket(AF_INET, kTcp, static_cast<uint32_t>(4711 + i), {0}));
    files.back().mutable_isk()->set_ifname(std::string(1'000'000 + static_cast<size_t>(i), 'x'));
  }
  EXPECT_EQ(TcpNames(files).size(), 70u);
}

// CRIU binds connected UDP sockets too.
TEST(RestoredNames, IncludeUdpPortsAndWhetherTheyAreShared) {
  const uint32_t local = htonl(INADDR_LOOPBACK);
  image::FileEntry connected = Socket(AF_INET, kUdp, 1, {local});
  connected.mutable_isk()->set_dst_port(53);
  image::FileEntry shared = Socket(AF_INET, kUdp, 2, {local});
  shared.mutable_isk()->mutable_opts()->set_reuseaddr(true);
  image::FileEntry listener = Socket(AF_INET, kTcp, 3, {local});
  listener.mutable_isk()->mutable_opts()->set_reuseaddr(true);
  auto names = Read(Image({connected, shared, listener}));
  ASSERT_TRUE(names);
  ASSERT_EQ(names->udp.size(), 2u);
  EXPECT_FALSE(names->udp[0].shared);
  EXPECT_TRUE(names->udp[1].shared);
  ASSERT_EQ(names->tcp.size(), 1u);
  EXPECT_FALSE(names->tcp[0].shared);  // SO_REUSEADDR does not share a port of TCP
}

image::FileEntry UnixSocket(uint32_t type, uint32_t state, const std::string& name) {
  image::FileEntry file;
  file.set_type(5);
  file.mutable_usk()->set_type(type);
  file.mutable_usk()->set_state(state);
  file.mutable_usk()->set_name(name);
  file.mutable_usk()->set_name_dir("/work");
  return file;
}

TEST(RestoredNames, IncludeUnixSocketsThatOthersCanReach) {
  using std::string_literals::operator""s;
  image::FileEntry deleted = UnixSocket(SOCK_STREAM, TCP_LISTEN, "/deleted");
  deleted.mutable_usk()->set_deleted(true);
  auto names = Read(
      Image({UnixSocket(SOCK_STREAM, TCP_LISTEN, "/run/x.sock\0"s), deleted,
             UnixSocket(SOCK_STREAM, TCP_ESTABLISHED, "/run/accepted.sock"),
             UnixSocket(SOCK_DGRAM, TCP_CLOSE, "y.sock"), UnixSocket(SOCK_DGRAM, TCP_CLOSE, ""),
             UnixSocket(SOCK_STREAM, TCP_LISTEN, "\0name\0\0"s)}));
  ASSERT_TRUE(names);
  EXPECT_EQ(names->unix_sockets,
            (std::vector<UnixName>{
                {"/run/x.sock", "/run/x.sock"}, {"@name\0\0"s, ""}, {"y.sock", "/work/y.sock"}}));
}

TEST(RestoredNames, IncludeFilesThatAreWrittenButNotThoseThatAreOnlyAppendedTo) {
  auto file = [](const std::string& name, int flags) {
    image::FileEntry entry;
    entry.set_type(1);
    entry.mutable_reg()->set_name(name);
    entry.mutable_reg()->set_flags(static_cast<uint32_t>(flags));
    return entry;
  };
  auto names = Read(Image({file("/b", O_RDWR), file("/a", O_WRONLY), file("/b", O_RDWR),
                           file("/read", O_RDONLY), file("/log", O_WRONLY | O_APPEND)}));
  ASSERT_TRUE(names);
  EXPECT_EQ(names->written_files, (std::vector<std::string>{"/a", "/b"}));
}

}  // namespace
}  // namespace stasis::criu
