#include "repository/encrypted_sealing.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace stasis::repository {
namespace {

// Opens a unit from pieces of `piece` bytes.
Status OpenUnit(UnitOpener& opener, uint64_t number, std::string_view sealed, std::string& plain,
                size_t piece) {
  STASIS_TRY(opener.Begin(number, plain));
  for (; !sealed.empty(); sealed.remove_prefix(std::min(piece, sealed.size()))) {
    STASIS_TRY(opener.Add(sealed.substr(0, piece)));
  }
  return opener.Finish();
}

TEST(Sealing, UnitsAreOpenedFromPiecesOfAnySize) {
  const auto encrypted = EncryptedSealing(*MasterKey::Random()), plain = PlainSealing();
  for (const Sealing* sealing : {encrypted.get(), plain.get()}) {
    const auto sealer = *sealing->NewPack();
    const std::string unit = "a unit that is longer than a tag";
    std::string sealed(unit.size() + 16, '\0');
    ASSERT_TRUE(sealer->Seal(unit, sealed.data()));
    const auto opener = *sealing->OpenPack(sealer->id());
    for (size_t piece = 1; piece <= sealed.size(); ++piece) {
      std::string opened(unit.size(), '\0');
      ASSERT_TRUE(opener->Begin(0, opened));
      ASSERT_TRUE(opener->Add(sealed.substr(0, piece))) << "a unit that is abandoned";
      ASSERT_TRUE(OpenUnit(*opener, 0, sealed, opened, piece));
      EXPECT_EQ(opened, unit);
      EXPECT_FALSE(OpenUnit(*opener, 1, sealed, opened, piece)) << "another unit";
      EXPECT_FALSE(OpenUnit(*opener, 0, sealed.substr(0, sealed.size() - 1), opened, piece))
          << "cut";
      sealed[piece - 1] ^= 1;
      EXPECT_EQ(OpenUnit(*opener, 0, sealed, opened, piece).error().code, Code::kDataLoss);
      sealed[piece - 1] ^= 1;
    }
  }
}

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
  ASSERT_TRUE(OpenUnit(**opener, 1, second, plain, 21));
  EXPECT_EQ(plain, "other");
  EXPECT_FALSE(OpenUnit(**opener, 0, second, plain, 21));
  EXPECT_FALSE(OpenUnit(**wrong->OpenPack((*sealer)->id()), 1, second, plain, 21));

  const std::string object = *sealing->SealObject("images/a", "manifest");
  EXPECT_EQ(object.find("manifest"), object.npos);
  EXPECT_EQ(*sealing->OpenObject("images/a", object, "x"), "manifest");
  EXPECT_EQ(sealing->OpenObject("images/b", object, "x").error().code, Code::kDataLoss);
  EXPECT_EQ(wrong->OpenObject("images/a", object, "x").error().code, Code::kPermissionDenied);
}

}  // namespace
}  // namespace stasis::repository
