#include "repository/seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <type_traits>
#include <vector>

#include "base/hex.h"

namespace stasis::repository {
namespace {

// Returns a key with the bytes `first`, `first` + 1, and so on.
MasterKey Key(uint8_t first = 0) {
  SecretBytes bytes;
  for (size_t i = 0; i < kKeyBytes; ++i) bytes.data()[i] = static_cast<uint8_t>(first + i);
  return MasterKey(bytes);
}

Id128 GoldenId() {
  Id128 id;
  for (size_t i = 0; i < Id128::kBytes; ++i) id.bytes[i] = static_cast<uint8_t>(0x40 + i);
  return id;
}

std::string Bytes(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  return text;
}

constexpr std::string_view kFox = "The quick brown fox jumps over the lazy dog";

PackOpener OpenerOf(const Id128& pack, const MasterKey& master = Key()) {
  auto opener = PackOpener::Create(master, pack);
  EXPECT_TRUE(opener) << opener.error().ToString();
  return std::move(*opener);
}

struct Sealed {
  Id128 pack;
  std::vector<std::string> units;
};

Sealed SealUnits(const std::vector<std::string>& plain, const MasterKey& master = Key()) {
  auto sealer = PackSealer::Create(master);
  EXPECT_TRUE(sealer);
  Sealed sealed{sealer->pack(), {}};
  for (const std::string& unit : plain) {
    std::string& out = sealed.units.emplace_back(SealedUnitBytes(unit.size()), '\0');
    auto number = sealer->Seal(unit, out.data());
    EXPECT_TRUE(number) << number.error().ToString();
    EXPECT_EQ(*number, sealed.units.size() - 1);
  }
  return sealed;
}

// The following values were computed with Python's `cryptography` 38 by the rules in the headers,
// the HKDF also with the `openssl kdf` command.
TEST(MasterKeyTest, DerivedKeysAreThoseOfTheFormat) {
  const MasterKey key = Key();
  EXPECT_EQ(key.id().Hex(), "4a842777d7624912ee61fb2538ce6e50");
  const BlockSecret names = key.NamingSecret();
  EXPECT_EQ(HexOfBytes({reinterpret_cast<const char*>(names.data()), names.size()}),
            "b0c5e122b9e592f15176d46325324d0459b8614b931e4788642c64422c7f836c");
  EXPECT_EQ(HexOfBytes(key.PackKey(GoldenId()).View()),
            "d6f6c048f655b7517032c59066478c864236f9346a06c95516089ee6d9084296");
  EXPECT_EQ(HexOfBytes(key.ObjectKey(GoldenId()).View()),
            "06f5f1b0d3aea3f44ffe5239b156fd76ff90cf09ade7970dcd95c3a4475cc8b5");
}

// RFC 5869, case 3: no salt and no info.
TEST(MasterKeyTest, HkdfIsThatOfTheStandard) {
  EXPECT_EQ(HexOfBytes(Hkdf(std::string(22, '\x0b'), "").View()),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
}

TEST(MasterKeyTest, RandomKeysDiffer) {
  EXPECT_FALSE(MasterKey::Random()->bytes() == MasterKey::Random()->bytes());
}

TEST(SealTest, OpensUnitsOfAnIndependentImplementation) {
  PackOpener opener = OpenerOf(GoldenId());
  struct Case {
    uint64_t number;
    const char* sealed;
  };
  for (const Case& c : {Case{0,
                             "0a57b45e61dd1e68a85345699644b2f691fac6175e1e596cfd29b4b1cbb1260d23255"
                             "70ba49dcc3e9a63c3c89c3168da21592aca17053ec71e5bde"},
                        Case{7,
                             "f909d8872e77698710fc37da98a16ce3d96e6e186ecac9ccb3c553fa3361f323c98bb"
                             "7f4133b9090ce9b881ed17e1c04d8cf9af7361df3d19c2c5b"},
                        Case{0x0102030405060708,
                             "9c9ec3f29bdb57e0a4e654c59c2b356c29b554e62cfd441d294367e95670484c27b44"
                             "de4dbbfe6dd19c528d80c2e7d602fcc610498a8fccffceda9"}}) {
    std::string plain(kFox.size(), '\0');
    auto opened = opener.Open(c.number, BytesOfHex(c.sealed), plain);
    EXPECT_TRUE(opened) << opened.error().ToString();
    EXPECT_EQ(plain, kFox);
  }
}

TEST(SealTest, OpensAnObjectOfAnIndependentImplementation) {
  const std::string sealed = BytesOfHex(
      "7374736c010000004a842777d7624912ee61fb2538ce6e50404142434445464748494a4b4c4d4e4f2b000000"
      "000000008f943045690d6d93c048526eace54dea1c15ab12cf04648fb95d58f49c289f9cd7dc79538d010a8f8a"
      "d11d981c1f7b55228c40509c5f21e891c4be");
  auto plain = OpenObject(Key(), "manifest of a", sealed, "x");
  ASSERT_TRUE(plain) << plain.error().ToString();
  EXPECT_EQ(*plain, kFox);
}

TEST(SealTest, EveryPackAndUnitIsEncryptedDifferently) {
  const std::string unit = Bytes(100);
  std::set<std::string> seen;
  for (int pack = 0; pack < 3; ++pack) {
    for (const std::string& sealed : SealUnits({unit, unit, unit}).units) {
      EXPECT_EQ(sealed.size(), unit.size() + kSealTagBytes);
      EXPECT_TRUE(seen.insert(sealed).second);
    }
  }
}

// A copy of a sealer, or one that goes on with an earlier pack, would repeat numbers.
TEST(SealTest, NoSealerCanRepeatANumber) {
  static_assert(!std::is_copy_constructible_v<PackSealer>);
  static_assert(!std::is_copy_assignable_v<PackSealer>);
  static_assert(!std::is_constructible_v<PackSealer, const MasterKey&, const Id128&>);
  auto sealer = PackSealer::Create(Key());
  EXPECT_FALSE(sealer->pack() == PackSealer::Create(Key())->pack());
  std::string out(SealedUnitBytes(10), '\0');
  ASSERT_EQ(*sealer->Begin(10), 0u);
  ASSERT_TRUE(sealer->Add("12345", out.data()));
  EXPECT_EQ(*sealer->Begin(10), 1u) << "an abandoned unit has used up its number";
  PackSealer moved = std::move(*sealer);
  EXPECT_EQ(*moved.Seal("1234567890", out.data()), 2u);
  EXPECT_EQ(moved.next(), 3u);
}

TEST(SealTest, AUnitHasExactlyTheAnnouncedBytes) {
  auto sealer = PackSealer::Create(Key());
  std::string out(100, '\0');
  EXPECT_FALSE(sealer->Begin(0));
  EXPECT_FALSE(sealer->Begin(kMaxSealedBytes + 1));
  EXPECT_FALSE(sealer->Add("a", out.data())) << "no unit was begun";
  ASSERT_TRUE(sealer->Begin(3));
  EXPECT_FALSE(sealer->Finish(out.data())) << "bytes are missing";
  EXPECT_FALSE(sealer->Add("1234", out.data()));
  ASSERT_TRUE(sealer->Add("123", out.data()));
  ASSERT_TRUE(sealer->Finish(out.data() + 3));
  EXPECT_FALSE(sealer->Finish(out.data() + 3));
}

// The unit arrives in pieces, as from a receive buffer. Some pieces end within the tag.
TEST(SealTest, AUnitIsOpenedFromPiecesOfAnyLength) {
  const std::string unit = Bytes(1000);
  const Sealed sealed = SealUnits({Bytes(50), unit});
  PackOpener opener = OpenerOf(sealed.pack);
  for (size_t piece : {1, 7, 16, 500, 999, 1000, 1001, 1015, 1016}) {
    std::string plain(unit.size(), 'x');
    ASSERT_TRUE(opener.Begin(1, plain));
    EXPECT_EQ(opener.missing(), sealed.units[1].size());
    for (std::string_view rest = sealed.units[1]; !rest.empty();
         rest.remove_prefix(std::min(piece, rest.size()))) {
      ASSERT_TRUE(opener.Add(rest.substr(0, piece)));
    }
    EXPECT_EQ(opener.missing(), 0u);
    auto finished = opener.Finish();
    ASSERT_TRUE(finished) << finished.error().ToString();
    EXPECT_EQ(plain, unit) << "in pieces of " << piece;
  }
}

TEST(SealTest, SealsInPiecesAndInPlace) {
  const std::string unit = Bytes(1000);
  auto sealer = PackSealer::Create(Key());
  std::string buffer = unit;
  buffer.resize(SealedUnitBytes(unit.size()));
  ASSERT_TRUE(sealer->Begin(unit.size()));
  for (size_t at = 0; at < unit.size(); at += 300) {
    const std::string_view piece = std::string_view(buffer).substr(0, 1000).substr(at, 300);
    ASSERT_TRUE(sealer->Add(piece, buffer.data() + at));
  }
  ASSERT_TRUE(sealer->Finish(buffer.data() + unit.size()));
  EXPECT_NE(buffer.substr(0, unit.size()), unit);
  PackOpener opener = OpenerOf(sealer->pack());
  ASSERT_TRUE(opener.Open(0, buffer, {buffer.data(), unit.size()}));
  EXPECT_EQ(buffer.substr(0, unit.size()), unit);
}

// An interrupted transfer begins the unit again.
TEST(SealTest, AUnitCanBeBegunAgain) {
  const std::string unit = Bytes(1000);
  const Sealed sealed = SealUnits({unit});
  PackOpener opener = OpenerOf(sealed.pack);
  std::string plain(unit.size(), '\0');
  ASSERT_TRUE(opener.Begin(0, plain));
  ASSERT_TRUE(opener.Add("wrong bytes of a broken connection"));
  EXPECT_TRUE(opener.Open(0, sealed.units[0], plain));
  EXPECT_EQ(plain, unit);
}

// Expects an error, and that no decrypted byte of the unit is left.
void ExpectRefused(PackOpener& opener, uint64_t number, std::string_view sealed, size_t size,
                   const std::string& why) {
  std::string plain(size, 'x');
  auto opened = opener.Open(number, sealed, plain);
  ASSERT_FALSE(opened) << why;
  EXPECT_EQ(opened.error().code, Code::kDataLoss);
  EXPECT_NE(opened.error().message.find(why), std::string::npos) << opened.error().message;
  EXPECT_EQ(plain, std::string(size, '\0')) << "decrypted bytes are left";
}

TEST(SealTest, AChangedUnitIsRefused) {
  const std::string unit = Bytes(100);
  const Sealed sealed = SealUnits({unit, Bytes(50), unit});
  PackOpener opener = OpenerOf(sealed.pack);
  for (size_t i = 0; i < sealed.units[0].size(); ++i) {
    std::string changed = sealed.units[0];
    changed[i] = static_cast<char>(changed[i] ^ 4);
    ExpectRefused(opener, 0, changed, 100, "it was changed or replaced");
  }
  ExpectRefused(opener, 0, sealed.units[2], 100, "it was changed or replaced");
  ExpectRefused(opener, 2, sealed.units[0], 100, "it was changed or replaced");
  for (size_t size : {size_t{0}, size_t{1}, size_t{99}, size_t{100}, size_t{115}}) {
    ExpectRefused(opener, 0, sealed.units[0].substr(0, size), 100, "is truncated");
  }
  ExpectRefused(opener, 0, sealed.units[0] + "x", 100, "has 117 bytes instead of 116");
  // A manifest could claim another length for the unit.
  ExpectRefused(opener, 0, sealed.units[0].substr(0, 66), 50, "it was changed or replaced");
  std::string plain(100, '\0');
  EXPECT_TRUE(opener.Open(0, sealed.units[0], plain)) << "the context is still usable";
}

TEST(SealTest, AUnitOfAnotherPackOrKeyIsRefused) {
  const Sealed one = SealUnits({Bytes(100)}), two = SealUnits({Bytes(100)});
  PackOpener opener = OpenerOf(one.pack), wrong_key = OpenerOf(one.pack, Key(1));
  ExpectRefused(opener, 0, two.units[0], 100, one.pack.Hex());
  ExpectRefused(wrong_key, 0, one.units[0], 100, "it was changed or replaced");
}

TEST(SealTest, MisuseOfAnOpenerIsAnError) {
  const Sealed sealed = SealUnits({Bytes(10)});
  PackOpener opener = OpenerOf(sealed.pack);
  EXPECT_EQ(opener.missing(), 0u);
  EXPECT_FALSE(opener.Finish());
  EXPECT_FALSE(opener.Add("x"));
  EXPECT_FALSE(opener.Begin(0, {}));
  std::string plain(10, '\0');
  ASSERT_TRUE(opener.Begin(0, plain));
  EXPECT_FALSE(opener.Add(sealed.units[0] + "x"));
  PackOpener moved = std::move(opener);
  ASSERT_TRUE(moved.Add(sealed.units[0]));
  EXPECT_TRUE(moved.Finish());
  EXPECT_EQ(plain, Bytes(10));
}

Error ObjectError(const std::string& sealed, const MasterKey& key = Key(),
                  std::string_view purpose = "names") {
  auto opened = OpenObject(key, purpose, sealed, "images/a");
  if (opened) return Error{Code::kOk};
  EXPECT_NE(opened.error().message.find("images/a"), std::string::npos);
  return opened.error();
}

TEST(SealTest, AnObjectComesBack) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{100'000}}) {
    auto sealed = SealObject(Key(), "names", Bytes(size));
    ASSERT_TRUE(sealed);
    EXPECT_EQ(sealed->size(), SealedObjectBytes(size));
    EXPECT_EQ(*OpenObject(Key(), "names", *sealed, "x"), Bytes(size));
  }
  EXPECT_NE(*SealObject(Key(), "names", "a"), *SealObject(Key(), "names", "a"));
}

TEST(SealTest, AChangedOrCutObjectIsRefused) {
  const std::string sealed = *SealObject(Key(), "names", Bytes(30));
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const Code code = ObjectError(changed).code;
    const bool version = i >= 4 && i < 8, key_id = i >= 8 && i < 24;
    EXPECT_EQ(code, version  ? Code::kUnimplemented
                    : key_id ? Code::kPermissionDenied
                             : Code::kDataLoss)
        << i;
  }
  for (size_t size = 0; size < sealed.size(); ++size) {
    const Error error = ObjectError(sealed.substr(0, size));
    EXPECT_EQ(error.code, Code::kDataLoss);
    EXPECT_NE(error.message.find("truncated"), std::string::npos) << error.message;
  }
  EXPECT_EQ(ObjectError(sealed + "x").code, Code::kDataLoss);
  EXPECT_EQ(ObjectError(sealed, Key(), "manifest").code, Code::kDataLoss);
  EXPECT_EQ(ObjectError(sealed).code, Code::kOk);
}

TEST(SealTest, AWrongKeyIsReportedWithBothIds) {
  const std::string sealed = *SealKnownText(Key());
  EXPECT_TRUE(CheckKnownText(Key(), sealed, "repo"));
  auto wrong = CheckKnownText(Key(1), sealed, "repo");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kPermissionDenied);
  for (const MasterKey& key : {Key(), Key(1)}) {
    EXPECT_NE(wrong.error().message.find(key.id().Hex()), std::string::npos)
        << wrong.error().message;
  }
  EXPECT_EQ(CheckKnownText(Key(), *SealObject(Key(), "names", "x"), "repo").error().code,
            Code::kDataLoss);
}

}  // namespace
}  // namespace stasis::repository
