#include "criu/restored_names.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <set>
#include <string_view>

#include "criu/files.pb.h"
#include "criu/image_entries.h"

namespace stasis::criu {
namespace {

enum FileType : uint32_t { kRegularFile = 1, kInetSocket = 4, kUnixSocket = 5 };
constexpr std::string_view kDriverSocket = "cuda-uvmfd-";  // after "@" or a zero byte
constexpr size_t kMaxNames = 65536;                        // of each kind; a real program has a few

tl::unexpected<Error> BadEntry(const char* what) {
  return Fail(Code::kInternal, Domain::kCriu, 0,
              std::string(what) + " does not have the format of CRIU 4");
}

class Names {
 public:
  Status Add(const image::FileEntry& file) {
    if (file.type() == kInetSocket && file.has_isk()) return AddInet(file.isk());
    if (file.type() == kUnixSocket && file.has_usk()) AddUnix(file.usk());
    if (file.type() == kRegularFile && file.has_reg()) AddFile(file.reg());
    if (unix_sockets_.size() <= kMaxNames && written_files_.size() <= kMaxNames) return {};
    return Fail(Code::kInternal, Domain::kCriu, 0, "there are too many names");
  }
  RestoredNames Take() const {
    return {{tcp_.begin(), tcp_.end()},
            {udp_.begin(), udp_.end()},
            {unix_sockets_.begin(), unix_sockets_.end()},
            {written_files_.begin(), written_files_.end()}};
  }

 private:
  Status AddInet(const image::InetSocket& socket) {
    const bool is_udp = socket.proto() == IPPROTO_UDP;
    if (socket.proto() != IPPROTO_TCP && !is_udp) return {};
    if (socket.src_port() == 0 || (!is_udp && socket.dst_port() != 0)) return {};
    std::set<InetPort>& ports = is_udp ? udp_ : tcp_;
    InetPort port;
    port.family = static_cast<int>(socket.family());
    const int words = port.family == AF_INET ? 1 : 4;
    if ((port.family != AF_INET && port.family != AF_INET6) || socket.src_addr_size() < words ||
        socket.src_port() > UINT16_MAX || ports.size() >= kMaxNames) {
      return BadEntry("a socket");
    }
    port.address = ToTcpAddress(port.family, socket.src_addr().data());
    port.port = static_cast<uint16_t>(socket.src_port());
    port.v6only = socket.v6only();
    port.interface = socket.ifname();
    port.shared = socket.opts().so_reuseport() || (is_udp && socket.opts().reuseaddr());
    ports.insert(std::move(port));
    return {};
  }

  void AddUnix(const image::UnixSocket& socket) {
    // An accepted connection has the name of the socket that listens.
    const bool takes_others = socket.state() == TCP_LISTEN || socket.type() == SOCK_DGRAM;
    UnixName name{socket.name(), ""};
    if (!takes_others || name.name.empty() || socket.deleted()) return;
    if (name.name[0] == '\0') {
      name.name[0] = '@';
    } else {
      name.name.resize(std::strlen(name.name.c_str()));
      name.path = name.name[0] == '/' ? name.name : socket.name_dir() + "/" + name.name;
    }
    unix_sockets_.insert(std::move(name));
  }

  void AddFile(const image::RegularFile& file) {
    if ((file.flags() & O_ACCMODE) == O_RDONLY || (file.flags() & O_APPEND) != 0) return;
    written_files_.insert(file.name());
  }

  std::set<InetPort> tcp_, udp_;
  std::set<UnixName> unix_sockets_;
  std::set<std::string> written_files_;
};

}  // namespace

bool UnixName::IsOfDriver() const {
  return path.empty() && name.substr(0, 1) == "@" && name.substr(1).starts_with(kDriverSocket);
}

Status SetPidNamespace(const std::string& images_dir, uint64_t number) {
  return ChangeEntries(images_dir + "/files.img", kFilesImage, [&](std::string& bytes) -> Status {
    image::FileEntry file;
    if (!file.ParseFromString(bytes)) return BadEntry("an entry");
    if (file.type() != kUnixSocket || !file.has_usk()) return {};
    std::string name = file.usk().name();
    if (name.empty() || name[0] != '\0' ||
        name.compare(1, kDriverSocket.size(), kDriverSocket) != 0)
      return {};
    const size_t begin = 1 + kDriverSocket.size(), end = name.find('-', begin);
    if (end == std::string::npos) return {};
    name.replace(begin, end - begin, std::to_string(number));
    file.mutable_usk()->set_name(name);
    bytes = file.SerializeAsString();
    return {};
  });
}

Result<RestoredNames> ReadRestoredNames(int files_img, uint64_t size_bytes) {
  Names names;
  auto note = [&](const std::string& bytes) -> Status {
    image::FileEntry file;
    if (!file.ParseFromString(bytes)) return BadEntry("an entry");
    return names.Add(file);
  };
  STASIS_TRY(ReadEntries(files_img, size_bytes, kFilesImage, "files.img", note));
  return names.Take();
}

}  // namespace stasis::criu
