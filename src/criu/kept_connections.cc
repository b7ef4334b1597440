#include "criu/kept_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/file.h"
#include "criu/files.pb.h"
#include "criu/image_entries.h"
#include "criu/inventory.pb.h"

namespace stasis::criu {
namespace {

constexpr std::string_view kInventoryHeader = "\x16\x31\x31\x58";  // lacks the common header
constexpr uint32_t kTcpStreamImage = 0x51465506;
constexpr uint32_t kInetSocket = 4;  // a type of entries in files.img
constexpr size_t kMaxConnections = 65536;

// CRIU cuts "inet CRIU-" and the id of its run to 31 characters.
constexpr std::string_view kTableFamily = "inet ", kTablePrefix = "CRIU-";
constexpr size_t kMaxNameBytes = 31 - kTableFamily.size();

tl::unexpected<Error> BadFormat(const std::string& what) {
  return Fail(Code::kInternal, Domain::kCriu, 0, what + " does not have the format of CRIU 4");
}

struct Image {
  UniqueFd file;
  uint64_t size_bytes = 0;
};

Result<Image> OpenImage(const std::string& path) {
  Image image;
  STASIS_ASSIGN(image.file, Open(path, O_RDONLY));
  struct stat stat;
  if (::fstat(image.file.get(), &stat) != 0) return FailErrno(errno, "stat " + path);
  image.size_bytes = static_cast<uint64_t>(stat.st_size);
  return image;
}

// Reads the first entry of a file, which comes after `header`. Other bytes may follow it.
template <class Message>
Result<Message> ReadFirst(const std::string& path, const std::string& header) {
  STASIS_ASSIGN(const Image image, OpenImage(path));
  constexpr size_t kMaxBytes = 64u << 10;
  std::string bytes(std::min<uint64_t>(image.size_bytes, kMaxBytes), '\0');
  STASIS_TRY(PreadAll(image.file.get(), bytes.data(), bytes.size(), 0));
  uint32_t size = 0;
  const size_t begin = header.size() + sizeof size;
  if (bytes.size() < begin || !bytes.starts_with(header)) return BadFormat(path);
  std::memcpy(&size, bytes.data() + header.size(), sizeof size);
  Message message;
  if (size > bytes.size() - begin ||
      !message.ParseFromArray(bytes.data() + begin, static_cast<int>(size))) {
    return BadFormat(path);
  }
  return message;
}

bool IsRunId(const std::string& id) {
  return !id.empty() && std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isxdigit(c) != 0 || c == '-';
  });
}

Status SetLock(const std::string& images_dir, KeptConnections& kept) {
  const std::string path = images_dir + "/inventory.img";
  STASIS_ASSIGN(const auto inventory,
                ReadFirst<image::Inventory>(path, std::string(kInventoryHeader)));
  constexpr NetworkLock kMethods[] = {NetworkLock::kIptables, NetworkLock::kNftables,
                                      NetworkLock::kSkip};
  const uint32_t method = inventory.network_lock_method();
  if (method >= std::size(kMethods)) return BadFormat(path);
  kept.lock = kMethods[method];
  if (kept.lock != NetworkLock::kNftables) return {};
  if (!IsRunId(inventory.dump_criu_run_id())) return BadFormat(path);
  kept.table = (std::string(kTablePrefix) + inventory.dump_criu_run_id()).substr(0, kMaxNameBytes);
  return {};
}

Status AddSocket(const image::InetSocket& socket, KeptConnections& kept) {
  if (socket.proto() != IPPROTO_TCP || socket.dst_port() == 0) return {};
  const auto family = static_cast<int>(socket.family());
  const int words = family == AF_INET ? 1 : 4;
  if ((family != AF_INET && family != AF_INET6) || socket.src_addr_size() < words ||
      socket.dst_addr_size() < words || socket.src_port() > UINT16_MAX ||
      socket.dst_port() > UINT16_MAX) {
    return BadFormat("a socket");
  }
  if (kept.all.size() >= kMaxConnections) {
    return Fail(Code::kInternal, Domain::kCriu, 0,
                fmt::format("there are more than {} TCP connections", kMaxConnections));
  }
  kept.all.push_back({ToTcpAddress(family, socket.src_addr().data()),
                      ToTcpAddress(family, socket.dst_addr().data()),
                      static_cast<uint16_t>(socket.src_port()),
                      static_cast<uint16_t>(socket.dst_port())});
  kept.inodes.push_back(socket.ino());
  return {};
}

std::string ToText(const TcpAddress& address, uint16_t port) {
  const std::string text = ToString(address);
  return IsIpv4(address) ? fmt::format("{}:{}", text, port) : fmt::format("[{}]:{}", text, port);
}

}  // namespace

bool IsIpv4(const TcpAddress& address) {
  constexpr TcpAddress kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(address.data(), kMapped.data(), 12) == 0;
}

std::string ToString(const TcpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v4 = IsIpv4(address);
  ::inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

std::string ToString(const TcpConnection& connection) {
  return ToText(connection.local, connection.local_port) + " to " +
         ToText(connection.remote, connection.remote_port);
}

Result<KeptConnections> ReadKeptConnections(const std::string& images_dir) {
  KeptConnections kept;
  STASIS_TRY(SetLock(images_dir, kept));
  const std::string path = images_dir + "/files.img";
  STASIS_ASSIGN(const Image files, OpenImage(path));
  auto add = [&](const std::string& bytes) -> Status {
    image::FileEntry file;
    if (!file.ParseFromString(bytes)) return BadFormat("an entry");
    return file.type() == kInetSocket && file.has_isk() ? AddSocket(file.isk(), kept) : Status();
  };
  STASIS_TRY(ReadEntries(files.file.get(), files.size_bytes, kFilesImage, path, add));
  std::sort(kept.all.begin(), kept.all.end());
  return kept;
}

std::vector<TcpConnection> FindOutside(const KeptConnections& kept) {
  std::vector<TcpConnection> outside;
  for (const TcpConnection& end : kept.all) {
    const TcpConnection other{end.remote, end.local, end.remote_port, end.local_port};
    if (!std::binary_search(kept.all.begin(), kept.all.end(), other)) outside.push_back(end);
  }
  return outside;
}

Result<bool> HasUnsentData(const std::string& images_dir, const KeptConnections& kept) {
  for (uint32_t inode : kept.inodes) {
    const std::string path = fmt::format("{}/tcp-stream-{:x}.img", images_dir, inode);
    STASIS_ASSIGN(const auto stream,
                  ReadFirst<image::TcpStream>(path, MakeEntries(kTcpStreamImage, {})));
    if (stream.unsq_len() != 0) return true;
  }
  return false;
}

}  // namespace stasis::criu
