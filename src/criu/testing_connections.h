// Forged CRIU images with TCP connections, for tests.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "criu/files.pb.h"
#include "criu/image_entries.h"
#include "criu/inventory.pb.h"

namespace stasis::criu {

inline constexpr uint32_t kStreamKind = 0x51465506;
inline constexpr char kRunId[] = "df491404-f9d7-4627-9907-30f75daece52";
inline constexpr char kTable[] = "CRIU-df491404-f9d7-4627-99";  // CRIU 4.2.1 cuts the name

// Returns the bytes of inventory.img, which lacks the header that CRIU's other images have in
// common.
inline std::string InventoryFile(const std::string& entry) {
  return MakeEntries(0x58313116, {entry}).substr(4);
}

// Returns the entry of one end of a connection of IPv4 or IPv6, with ino 1.
inline image::FileEntry ConnectionEnd(const std::string& local, uint32_t local_port,
                                      const std::string& remote, uint32_t remote_port) {
  image::FileEntry file;
  file.set_type(4);
  auto* socket = file.mutable_isk();
  const bool v4 = local.find(':') == std::string::npos;
  socket->set_ino(1);
  socket->set_family(v4 ? AF_INET : AF_INET6);
  socket->set_proto(IPPROTO_TCP);
  socket->set_state(1);
  socket->set_src_port(local_port);
  socket->set_dst_port(remote_port);
  auto add = [&](const std::string& text, auto* words) {
    uint32_t address[4]{};
    EXPECT_EQ(::inet_pton(v4 ? AF_INET : AF_INET6, text.c_str(), address), 1) << text;
    for (int i = 0; i < (v4 ? 1 : 4); ++i) words->Add(address[i]);
  };
  add(local, socket->mutable_src_addr());
  add(remote, socket->mutable_dst_addr());
  return file;
}

// A folder with the images of a dump whose lock is of nftables.
class ForgedImages {
 public:
  explicit ForgedImages(const std::vector<image::FileEntry>& files, uint32_t unsent_bytes = 0)
      : path_(testing::TempDir() + "/kept") {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
    SetInventory(1, kRunId);
    std::vector<std::string> entries;
    for (const auto& file : files) entries.push_back(file.SerializeAsString());
    Write("files.img", MakeEntries(kFilesImage, entries));
    image::TcpStream stream;
    stream.set_unsq_len(unsent_bytes);
    // The connection's queues follow the entry.
    Write("tcp-stream-1.img", MakeEntries(kStreamKind, {stream.SerializeAsString()}) + "queue");
  }
  void SetInventory(uint32_t lock, const std::string& run_id) const {
    image::Inventory inventory;
    inventory.set_network_lock_method(lock);
    inventory.set_dump_criu_run_id(run_id);
    Write("inventory.img", InventoryFile(inventory.SerializeAsString()));
  }
  void Write(const std::string& name, const std::string& bytes) const {
    EXPECT_TRUE(ReplaceFile(path_ + "/" + name, bytes));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace stasis::criu
