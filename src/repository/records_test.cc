#include "repository/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/little_endian.h"
#include "repository/image_record.h"
#include "repository/limits.h"
#include "repository/record.h"
#include "store/image_testing.h"

namespace stasis::repository {

namespace {

using ::testing::HasSubstr;

Id128 Id(uint8_t first) {
  Id128 id;
  id.bytes[0] = first;
  return id;
}

template <class T>
std::string ErrorOf(const Result<T>& result) {
  return result ? "accepted" : result.error().message;
}

TEST(Layout, ParsesItsKeys) {
  const PushId push = *PushId::Random();
  const PackId pack{push, 17};
  EXPECT_EQ(ParsePackKey(PackKey(pack)), pack);
  EXPECT_EQ(PackId::FromRaw(pack.ToBytes().data()), pack);
  EXPECT_EQ(ParseIndexKey(PlaceKey(push))->push, push);
  EXPECT_FALSE(ParseIndexKey(PlaceKey(push))->is_names);
  EXPECT_TRUE(ParseIndexKey(NamesKey(push))->is_names);
  EXPECT_EQ(ParsePendingKey(PendingKey(push)), push);
  EXPECT_EQ(ParseCondemnedKey(CondemnedKey(push)), push);
  EXPECT_EQ(ParseImageKey(ImageKey("llama-3.1")), "llama-3.1");
}

TEST(Layout, RejectsOtherKeys) {
  const std::string hex(24, 'a');
  for (const std::string& key :
       {"packs/" + hex, "packs/" + hex + "/", "packs/" + hex + "/0", "packs/" + hex + "/01",
        "packs/" + hex + "/1025", "packs/" + hex + "/1x", "packs/" + hex + "a/1",
        "packs/" + std::string(24, 'A') + "/1", "pack/" + hex + "/1", std::string("packs/")}) {
    EXPECT_FALSE(ParsePackKey(key)) << key;
  }
  EXPECT_FALSE(ParseIndexKey("index/" + hex));
  EXPECT_FALSE(ParseIndexKey("index/" + hex + ".other"));
  EXPECT_FALSE(ParseImageKey("images/.hidden"));
  EXPECT_FALSE(ParseImageKey("images/a/b"));
}

TEST(Record, IsReadAgain) {
  const std::string record = EncodeRecord({RecordKind::kPlace, Id(7), "index/x"}, "body");
  const auto decoded = DecodeRecord(record, "it");
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->header.kind, RecordKind::kPlace);
  EXPECT_EQ(decoded->header.repository, Id(7));
  EXPECT_EQ(decoded->header.key, "index/x");
  EXPECT_EQ(decoded->body, "body");
}

TEST(Record, DetectsEveryChangedAndMissingByte) {
  const std::string record = EncodeRecord({RecordKind::kPlace, Id(7), "index/x"}, "body");
  for (size_t i = 0; i < record.size(); ++i) {
    std::string changed = record;
    changed[i] ^= 1;
    EXPECT_FALSE(DecodeRecord(changed, "it")) << i;
    EXPECT_FALSE(DecodeRecord(record.substr(0, i), "it")) << i;
  }
  EXPECT_FALSE(DecodeRecord(record + "x", "it"));
}

std::vector<PackTable> TwoPacks() {
  PackTable first(1, Id(1));
  for (int i = 0; i < 3; ++i) first.Add(4096, 4096, store::Codec::kNone);
  first.Add(2 << 20, 1000, store::Codec::kZstd);
  PackTable second(3, Id(2));
  second.Add(100, 100, store::Codec::kNone);
  return {first, second};
}

TEST(PackTable, PlacesUnits) {
  const PackTable pack = TwoPacks()[0];
  EXPECT_EQ(pack.units(), 4u);
  EXPECT_EQ(pack.groups().size(), 2u);
  EXPECT_EQ(pack.object_bytes(), 3 * 4112u + 1016u);
  EXPECT_EQ(pack.Place(0).offset, 0u);
  EXPECT_EQ(pack.Place(2).offset, 2 * 4112u);
  EXPECT_EQ(pack.Place(3).offset, 3 * 4112u);
  EXPECT_EQ(pack.Place(3).plain_bytes, 2u << 20);
  EXPECT_EQ(pack.Place(3).end(), pack.object_bytes());
}

TEST(PackTable, IsReadAgain) { EXPECT_EQ(*DecodePlace(EncodePlace(TwoPacks())), TwoPacks()); }

TEST(PackTable, IsRejectedIfARuleIsBroken) {
  struct Case {
    size_t offset;
    uint32_t value;
    const char* error;
  };
  const std::string body = EncodePlace(TwoPacks());
  for (const Case& one : std::vector<Case>{
           {0, 3, "ends too early"},
           {0, kMaxPushPacks + 1, "packs; at most"},
           {4, 0, "follows pack 0"},
           {4, 3, "follows pack 3"},
           {4, kMaxPushPacks + 1, "follows pack"},
           {8, 0, "with 0 groups"},
           {8, 1u << 30, "groups; at most"},
           {28, 0, "claims 0 units"},
           {28, 1u << 31, "more than 67108864 bytes"},
           {32, 4097, "stored as 4096"},
           {32, 0, "units of 0 bytes"},
           {32, (2u << 20) + 1, "units of 2097153 bytes"},
           {40, 1, "with codec 1"},
           {40, 3, "with codec 3"},
           {52, 2u << 20, "stored as 2097152 with codec 2"},
           {52, 0, "stored as 0"},
       }) {
    std::string changed = body;
    std::memcpy(&changed[one.offset], &one.value, sizeof one.value);
    EXPECT_THAT(ErrorOf(DecodePlace(changed)), HasSubstr(one.error))
        << one.offset << " " << one.value;
  }
  EXPECT_THAT(ErrorOf(DecodePlace(body + "x")), HasSubstr("1 bytes follow its end"));
}

TEST(Records, AreReadAgain) {
  const PushId push = *PushId::Random();
  const RepositoryInfo info{Id(1), true, "known text"};
  EXPECT_EQ(DecodeInfo(Id(1), EncodeInfo(info))->parameters, "known text");
  EXPECT_TRUE(DecodeInfo(Id(1), EncodeInfo(info))->is_sealed);

  NamesIndex names{{"poly127-4k-aes256", Id(9)}, TwoPacks(), {Id(1), Id(2), Id(3), Id(4), Id(5)}};
  auto read_names = DecodeNames(EncodeNames(names));
  ASSERT_TRUE(read_names) << read_names.error().ToString();
  EXPECT_EQ(read_names->names, names.names);
  EXPECT_EQ(read_names->packs, names.packs);
  EXPECT_EQ(read_names->naming.key_id, Id(9));

  const Pending pending{5, {push}, {{push, 2}}};
  EXPECT_EQ(DecodePending(EncodePending(pending))->own, pending.own);
  EXPECT_EQ(DecodePending(EncodePending(pending))->packs, pending.packs);
  EXPECT_EQ(DecodePending(EncodePending(pending))->written_unix_ns, 5);
  const Condemned condemned{6, {{push, 2}}, {push}};
  EXPECT_EQ(DecodeCondemned(EncodeCondemned(condemned))->packs, condemned.packs);
  EXPECT_EQ(DecodeCondemned(EncodeCondemned(condemned))->indexes, condemned.indexes);
}

TEST(Records, AreRejectedIfARuleIsBroken) {
  const PushId push = *PushId::Random();
  EXPECT_THAT(ErrorOf(DecodePending(EncodePending({5, {push}, {{push, 0}}}))),
              HasSubstr("names pack 0"));
  EXPECT_THAT(ErrorOf(DecodeCondemned(EncodeCondemned({5, {{push, 2000}}, {}}))),
              HasSubstr("names pack 2000"));
  EXPECT_THAT(ErrorOf(DecodeNames(EncodeNames({{"f", Id(9)}, TwoPacks(), {Id(1)}}))),
              HasSubstr("ends too early"));
  std::vector<Id128> names(5, Id(1));
  names[4] = {};
  EXPECT_THAT(ErrorOf(DecodeNames(EncodeNames({{"f", Id(9)}, TwoPacks(), names}))),
              HasSubstr("unit 4 has no name"));
}

ImageRecord SmallImage() {
  ImageRecord image;
  image.pushed_unix_ns = 17;
  image.manifest = store::testing::FullManifest();
  image.manifest.image_id = Id(3);
  image.manifest.ranges = {{0, 0x1000, 10 * 4096 - 1, 4096, {}, 4711}};
  image.manifest.page_files = {{"cpu/pages-1.img", 4 * 4096, {}}};
  image.manifest.files = {{"cpu/a.img", 5, {Id(4)}}, {"cpu/b.img", 0, {}}};
  RemovePlaces(image.manifest);
  const PushId push = *PushId::Random();
  image.packs = {{push, 1}, {push, 2}};
  image.sequences = {{{0, 5, 7}, {StoredRun::kZeros, 0, 3}}, {{1, 0, 4}}, {{1, 9, 1}}, {}};
  return image;
}

TEST(ImageRecord, IsReadAgain) {
  const ImageRecord image = SmallImage();
  const auto body = EncodeImage(image);
  ASSERT_TRUE(body) << body.error().ToString();
  const auto read = DecodeImage(*body);
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->pushed_unix_ns, 17);
  EXPECT_EQ(read->packs, image.packs);
  EXPECT_EQ(read->sequences, image.sequences);
  EXPECT_EQ(read->manifest.image_id, Id(3));
}

TEST(ImageRecord, IsRejectedIfARuleIsBroken) {
  struct Case {
    std::function<void(ImageRecord&)> change;
    const char* error;
  };
  for (const Case& one : std::vector<Case>{
           {[](auto& i) { i.sequences.pop_back(); }, "3 lists of runs instead of 4"},
           {[](auto& i) { i.sequences[0].pop_back(); }, "needs 10 units, but has 7"},
           {[](auto& i) { i.sequences[0][0].units = 8; }, "invalid run"},
           {[](auto& i) { i.sequences[0][0].units = 0; }, "invalid run of 0 units"},
           {[](auto& i) { i.sequences[0][0].pack = 2; }, "of pack 2 of 2"},
           {[](auto& i) { i.sequences[0][0].first = kMaxPushUnits; }, "invalid run"},
           {[](auto& i) { i.sequences[0][1].first = 1; }, "invalid run"},
           {[](auto& i) {
              i.packs.push_back({*PushId::Random(), 1});
            },
            "does not need"},
           {[](auto& i) { i.packs[1] = i.packs[0]; }, "a pack twice"},
       }) {
    ImageRecord image = SmallImage();
    one.change(image);
    EXPECT_THAT(ErrorOf(EncodeImage(image)), HasSubstr(one.error));
  }
}

TEST(ImageRecord, OfAnyPrefixIsRejected) {
  const std::string body = *EncodeImage(SmallImage());
  for (size_t i = 0; i < body.size(); ++i) EXPECT_FALSE(DecodeImage(body.substr(0, i))) << i;
}

TEST(AppendRun, JoinsRunsThatFollowEachOther) {
  std::vector<StoredRun> runs;
  AppendRun(runs, {0, 5, 1});
  AppendRun(runs, {0, 6, 2});
  AppendRun(runs, {1, 8, 1});
  AppendRun(runs, {StoredRun::kZeros, 0, 1});
  AppendRun(runs, {StoredRun::kZeros, 0, ~0u - 1});
  AppendRun(runs, {StoredRun::kZeros, 0, 1});
  const std::vector<StoredRun> expected{
      {0, 5, 3}, {1, 8, 1}, {StoredRun::kZeros, 0, ~0u}, {StoredRun::kZeros, 0, 1}};
  EXPECT_EQ(runs, expected);
}

}  // namespace

}  // namespace stasis::repository
