#include "store/unit_names.h"

#include <gtest/gtest.h>

#include <string>

#include "store/image_testing.h"
#include "store/page_writer.h"
#include "store/shared_units_testing.h"

namespace stasis::store {
namespace {

using namespace testing;  // NOLINT

BlockSecret CountingSecret() {
  BlockSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
  return secret;
}

// The expected values were computed by tests/image/read_image.py, an independent implementation.
TEST(UnitNamesTest, AgreeWithTheDescription) {
  const UnitNames names(CountingSecret());
  EXPECT_EQ(names.NameOf("\x01")->Hex(), "51001bc8eb2d8ec0c143cf475d2faf5a");
  EXPECT_EQ(names.NameOf(std::string(4096, '\xff'))->Hex(), "8799b4fac962801d5af499de2fc0ca7c");
}

TEST(UnitNamesTest, ManyAtOnceAreTheSameAsEachAlone) {
  const UnitNames names(CountingSecret());
  std::vector<Id128> many;
  for (const char* text : {"a", "b", "c"}) many.push_back(names.key().Hash(text));
  ASSERT_TRUE(names.Encrypt(many));
  EXPECT_EQ(many, (std::vector<Id128>{*names.NameOf("a"), *names.NameOf("b"), *names.NameOf("c")}));
  EXPECT_TRUE(names.Encrypt({}));
}

using U128 = unsigned __int128;
constexpr U128 kP = (U128{1} << 127) - 1;

// Returns the number of a universal hash, without the bit that is always set.
U128 Value(const Id128& hash) {
  U128 value;
  std::memcpy(&value, hash.bytes.data(), sizeof value);
  return value & kP;
}

// A page that is zero except for its first word.
std::string Page(uint64_t word) {
  std::string page(kPageBytes, '\0');
  std::memcpy(page.data(), &word, sizeof word);
  return page;
}

bool IsLinear(const std::vector<Id128>& names) {
  return (Value(names[0]) + Value(names[3])) % kP == (Value(names[1]) + Value(names[2])) % kP;
}

// The universal hash is linear in its key, so the hashes of a few hundred known pages are equations
// that can be solved for the key. The names in a pack must not satisfy them. The test uses the
// shortest such equation: page 1 + page 4 = page 2 + page 3, word by word.
TEST(UnitNamesTest, NamesInAPackAreNotLinearInTheKey) {
  const UnitNames key = Key();
  std::vector<Id128> hashes;
  std::string memory;
  for (uint64_t word : {1, 2, 3, 4}) {
    hashes.push_back(key.key().Hash(Page(word)));
    memory += Page(word);
  }
  ASSERT_TRUE(IsLinear(hashes)) << "the relation that an attacker would use";

  TempStore store;
  auto writer = MustBegin(store.path(), "a");
  WriteFile(writer->cpu_path() + "/pages-1.img", memory);
  auto written = WritePages(*writer, key, {});
  ASSERT_TRUE(written) << written.error().ToString();
  Manifest manifest = FullManifest();
  written->DescribeIn(manifest);
  ASSERT_TRUE(writer->Commit(manifest, {}));
  auto reader = ImageReader::Open(store / "a");
  ASSERT_TRUE(reader);
  auto pack = (*reader)->OpenPack((*reader)->manifest().packs[0]);
  ASSERT_TRUE(pack);
  ASSERT_EQ(pack->units(), 4u);
  std::vector<Id128> names;
  for (const PackUnit& unit : pack->index().units) names.push_back(unit.name);
  EXPECT_FALSE(IsLinear(names)) << "the names reveal the key of the hash";
  EXPECT_EQ(names[0], *key.NameOf(Page(1)));
}

}  // namespace
}  // namespace stasis::store
