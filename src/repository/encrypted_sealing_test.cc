#include "repository/encrypted_sealing.h"

#include <gtest/gtest.h>

namespace stasis::repository {
namespace {

TEST(EncryptedSealing, PacksAndObjectsComeBackWithTheSameKeyOnly) {
  const MasterKey master = *MasterKey::Random(), other = *MasterKey::Random();
  const auto sealing = EncryptedSealing(master), wrong = EncryptedSealing(other);
  auto sealer = sealing->NewPack();
  ASSERT_TRUE(sealer);
  EXPECT_FALSE((*sealer)->id() == (*sealing->NewPack())->id());
  std::string first(4 + 16, '\0'), second(5 + 16, '\0');
  ASSERT_TRUE((*sealer)->Seal("unit", first.data()));
  ASSERT_TRUE((*sealer)->Seal("other", second.data()));

  auto opener = sealing->OpenPack((*sealer)->id());
  ASSERT_TRUE(opener);
  std::string plain(5, '\0');
  ASSERT_TRUE((*opener)->Open(1, second, plain));
  EXPECT_EQ(plain, "other");
  EXPECT_FALSE((*opener)->Open(0, second, plain));
  EXPECT_FALSE((*wrong->OpenPack((*sealer)->id()))->Open(1, second, plain));

  const std::string object = *sealing->SealObject("images/a", "manifest");
  EXPECT_EQ(object.find("manifest"), object.npos);
  EXPECT_EQ(*sealing->OpenObject("images/a", object, "x"), "manifest");
  EXPECT_EQ(sealing->OpenObject("images/b", object, "x").error().code, Code::kDataLoss);
  EXPECT_EQ(wrong->OpenObject("images/a", object, "x").error().code, Code::kPermissionDenied);
}

}  // namespace
}  // namespace stasis::repository
