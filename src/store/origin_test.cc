#include "store/origin.h"

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/hex.h"
#include "store/envelope.h"
#include "store/image_reader.h"
#include "store/image_testing.h"
#include "store/limits.h"

namespace stasis::store {
namespace {

using testing::MustBegin;
using testing::PretendCriuDump;
using testing::TempStore;
using testing::WriteFile;

BlockSecret Secret(uint8_t first) {
  BlockSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(first + i);
  return secret;
}

std::string MakeImage(const TempStore& store, const std::string& name,
                      std::optional<OriginKey> key) {
  auto writer = MustBegin(store.path(), name);
  PretendCriuDump(*writer);
  Manifest manifest = testing::FullManifest();
  CommitOptions options;
  options.origin = key;
  EXPECT_TRUE(writer->Commit(manifest, options));
  return writer->path();
}

Origin OriginIn(const std::string& image, const OriginKey* key) {
  auto reader = ImageReader::Open(image);
  EXPECT_TRUE(reader) << reader.error().ToString();
  return (*reader)->OriginBy(key);
}

// The expected values were computed with Python's hmac module, by the rules of
// docs/format/image.md.
TEST(OriginTest, TheMacIsTheOneOfTheFormat) {
  const OriginKey key(Secret(0));
  const Sha256Digest digest = Sha256("abc");
  EXPECT_EQ(key.id().Hex(), "f40737982fc1497469378b391bc8b858");
  EXPECT_EQ(HexOfBytes(std::string(View(key.Sign(digest).mac))),
            "1f9a196a95b4af66228547cac09cd66f8e4b15bcf63c357477817aa92839829b");
  EXPECT_TRUE(key.Verify(key.Sign(digest), digest));
  EXPECT_FALSE(key.Verify(key.Sign(digest), Sha256("abd")));
  const OriginKey other(Secret(1));
  EXPECT_FALSE(other.Verify(key.Sign(digest), digest));
  // A MAC that was computed with another key is rejected, even if it carries the id of this key.
  EXPECT_FALSE(key.Verify({key.id(), other.Sign(digest).mac}, digest));
  EXPECT_FALSE(key.Verify({other.id(), key.Sign(digest).mac}, digest));
}

TEST(OriginTest, OnlyTheWritersKeyVerifiesAnImage) {
  TempStore store;
  const OriginKey key(Secret(0)), other(Secret(1));
  const std::string image = MakeImage(store, "a", key);
  EXPECT_EQ(OriginIn(image, &key), Origin::kOwn);
  EXPECT_EQ(OriginIn(image, &other), Origin::kOther);
  EXPECT_EQ(OriginIn(image, nullptr), Origin::kOther);
  const std::string without = MakeImage(store, "b", std::nullopt);
  EXPECT_EQ(OriginIn(without, &key), Origin::kUnknown);
  EXPECT_EQ((*ImageReader::Open(without))->origin_key_id(), std::nullopt);
}

// The MAC covers every byte that a reader uses. The checksum is corrected after each change.
TEST(OriginTest, AChangedManifestIsNotVerified) {
  TempStore store;
  const OriginKey key(Secret(0));
  const std::string image = MakeImage(store, "a", key);
  const std::string good = *ReadFile(image + "/manifest.pb");
  const size_t covered = good.size() - Id128::kBytes - kOriginBytes;
  size_t opened = 0;
  for (size_t i = 0; i < good.size() - Id128::kBytes; ++i) {
    std::string file = good.substr(0, good.size() - Id128::kBytes);
    file[i] = static_cast<char>(file[i] ^ 1);
    file += Checksum(file).View();
    if (!OpenEnvelope(file, "x")) continue;
    ++opened;
    auto origin = ReadOrigin(file);
    ASSERT_TRUE(!origin || !key.Verify(origin->mac, origin->digest)) << "byte " << i;
  }
  EXPECT_GT(opened, covered - kEnvelopeHeaderBytes);

  std::string file = good.substr(0, covered);
  const size_t at = file.find("counter");
  ASSERT_NE(at, std::string::npos);
  file[at] = 'C';
  file += good.substr(covered, kOriginBytes);
  file += Checksum(file).View();
  WriteFile(image + "/manifest.pb", file);
  EXPECT_EQ(OriginIn(image, &key), Origin::kChanged);
}

// A file whose features announce a MAC must be long enough for it.
TEST(OriginTest, AFileThatIsTooShortForItsMacIsDamaged) {
  for (size_t body_bytes : {size_t{0}, kOriginBytes - 1}) {
    std::string file = SealEnvelope(std::string(body_bytes, 'x'), kFeatureOrigin);
    auto opened = OpenEnvelope(file, "x");
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kDataLoss);
  }
}

}  // namespace
}  // namespace stasis::store
