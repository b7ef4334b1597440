#include "criu/kept_connections.h"

#include <gtest/gtest.h>

#include "criu/testing_connections.h"

namespace stasis::criu {
namespace {

std::vector<std::string> Outside(const std::vector<image::FileEntry>& files) {
  auto kept = ReadKeptConnections(ForgedImages(files).path());
  if (!kept) return {kept.error().ToString()};
  std::vector<std::string> names;
  for (const auto& connection : FindOutside(*kept)) names.push_back(ToString(connection));
  return names;
}

using Names = std::vector<std::string>;

TEST(KeptConnections, AreInsideIfTheImagesHaveBothEnds) {
  const auto client = ConnectionEnd("127.0.0.1", 40000, "127.0.0.1", 80);
  const auto server = ConnectionEnd("127.0.0.1", 80, "127.0.0.1", 40000);
  EXPECT_EQ(Outside({}), Names());
  EXPECT_EQ(Outside({client, server}), Names());
  EXPECT_EQ(Outside({client}), Names{"127.0.0.1:40000 to 127.0.0.1:80"});
  // Another port, and another address.
  EXPECT_EQ(Outside({client, server, ConnectionEnd("127.0.0.1", 80, "127.0.0.1", 40001)}),
            Names{"127.0.0.1:80 to 127.0.0.1:40001"});
  EXPECT_EQ(Outside({client, ConnectionEnd("127.0.0.2", 80, "127.0.0.1", 40000)}).size(), 2u);
  EXPECT_EQ(Outside({ConnectionEnd("::1", 1, "fe80::2", 2)}), Names{"[::1]:1 to [fe80::2]:2"});
}

TEST(KeptConnections, AServerOfBothFamiliesHasMappedAddresses) {
  EXPECT_EQ(Outside({ConnectionEnd("127.0.0.1", 40000, "127.0.0.1", 80),
                     ConnectionEnd("::ffff:127.0.0.1", 80, "::ffff:127.0.0.1", 40000)}),
            Names());
}

TEST(KeptConnections, OtherSocketsAreNone) {
  auto listener = ConnectionEnd("127.0.0.1", 80, "0.0.0.0", 0);
  auto udp = ConnectionEnd("127.0.0.1", 80, "127.0.0.1", 81);
  udp.mutable_isk()->set_proto(IPPROTO_UDP);
  image::FileEntry file;
  file.set_type(1);
  auto kept = ReadKeptConnections(ForgedImages({listener, udp, file}).path());
  ASSERT_TRUE(kept) << kept.error().ToString();
  EXPECT_TRUE(kept->all.empty());
}

TEST(KeptConnections, TheTableIsNamedAfterTheRunOfCriu) {
  const ForgedImages images({});
  auto kept = ReadKeptConnections(images.path());
  ASSERT_TRUE(kept) << kept.error().ToString();
  EXPECT_EQ(kept->lock, NetworkLock::kNftables);
  EXPECT_EQ(kept->table, kTable);
  images.SetInventory(1, "12");
  EXPECT_EQ(ReadKeptConnections(images.path()).value().table, "CRIU-12");
  images.SetInventory(0, kRunId);
  EXPECT_EQ(ReadKeptConnections(images.path()).value().lock, NetworkLock::kIptables);
  EXPECT_EQ(ReadKeptConnections(images.path()).value().table, "");
  images.SetInventory(2, "");
  EXPECT_EQ(ReadKeptConnections(images.path()).value().lock, NetworkLock::kSkip);
}

TEST(KeptConnections, UnsentDataIsFoundBeforeTheQueues) {
  const std::vector files{ConnectionEnd("127.0.0.1", 1, "127.0.0.1", 2)};
  for (uint32_t bytes : {0u, 1u}) {
    const ForgedImages images(files, bytes);
    const auto kept = ReadKeptConnections(images.path());
    ASSERT_TRUE(kept) << kept.error().ToString();
    auto unsent = HasUnsentData(images.path(), *kept);
    ASSERT_TRUE(unsent) << unsent.error().ToString();
    EXPECT_EQ(*unsent, bytes != 0);
  }
}

TEST(KeptConnections, ForgedImagesAreRejected) {
  const ForgedImages images({});
  for (const char* id : {"", "a b", "a;b", "x", "a/b", "1}"}) {
    images.SetInventory(1, id);
    EXPECT_FALSE(ReadKeptConnections(images.path())) << id;
  }
  images.SetInventory(3, kRunId);
  EXPECT_FALSE(ReadKeptConnections(images.path()));
  const std::string whole = InventoryFile("abc");
  for (const std::string& bytes : {std::string(), whole.substr(0, 7), whole.substr(0, 10),
                                   MakeEntries(kStreamKind, {""}), whole}) {
    images.Write("inventory.img", bytes);
    EXPECT_FALSE(ReadKeptConnections(images.path()));
  }
  auto port = ConnectionEnd("127.0.0.1", 65536, "127.0.0.1", 2);
  auto family = ConnectionEnd("127.0.0.1", 1, "127.0.0.1", 2);
  family.mutable_isk()->set_family(AF_INET6);
  for (const auto& file : {port, family}) {
    EXPECT_FALSE(ReadKeptConnections(ForgedImages({file}).path()));
  }
  // The file of the connection is missing.
  const ForgedImages without({ConnectionEnd("127.0.0.1", 1, "127.0.0.1", 2)});
  const auto kept = ReadKeptConnections(without.path());
  ASSERT_TRUE(kept);
  std::filesystem::remove(without.path() + "/tcp-stream-1.img");
  EXPECT_FALSE(HasUnsentData(without.path(), *kept));
}

}  // namespace
}  // namespace stasis::criu
