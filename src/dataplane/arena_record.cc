#include "dataplane/arena_record.h"

#include <algorithm>

#include "base/checksum.h"
#include "base/little_endian.h"

namespace stasis::dataplane {
namespace {

constexpr std::string_view kMagic = "STASISAR";
constexpr size_t kBootIdBytes = 40;
constexpr size_t kUuidBytes = 48;
constexpr size_t kHeaderBytes = 152;
constexpr size_t kRangeBytes = 32;
constexpr uint32_t kComplete = 1;
constexpr uint32_t kHasChecksum = 2;

void AppendText(std::string& to, std::string_view text, size_t bytes) {
  to.append(text.substr(0, bytes));
  to.append(bytes - std::min(bytes, text.size()), '\0');
}

std::string TextAt(std::string_view data, size_t offset, size_t bytes) {
  std::string_view field = data.substr(offset, bytes);
  return std::string(field.substr(0, field.find('\0')));
}

// Text must be padded with zeros only.
bool IsTextAt(std::string_view data, size_t offset, size_t bytes) {
  std::string_view field = data.substr(offset, bytes);
  return field.find_first_not_of('\0', field.find('\0')) == field.npos;
}

tl::unexpected<Error> Damaged(std::string why) {
  return Fail(Code::kDataLoss, "the record of an arena is damaged: " + std::move(why));
}

}  // namespace

std::vector<uint8_t> ArenaHashes::Zeros() const {
  std::vector<uint8_t> zeros;
  zeros.reserve(blocks.size());
  for (const Id128& hash : blocks) zeros.push_back(hash.IsZero() ? 1 : 0);
  return zeros;
}

std::string Encode(const ArenaRecord& record) {
  std::string out(kMagic);
  AppendNumber<uint32_t>(out, record.hashes ? kArenaRecordVersionWithHashes : kArenaRecordVersion);
  AppendNumber<uint32_t>(
      out, (record.complete ? kComplete : 0) | (record.has_checksum ? kHasChecksum : 0));
  AppendNumber<int32_t>(out, record.key.process.pid.value);
  AppendNumber<uint32_t>(out, record.owner);
  AppendNumber<uint64_t>(out, record.key.process.start_time);
  AppendNumber<uint64_t>(out, record.data_bytes);
  out.append(record.checksum.View());
  AppendText(out, record.boot_id, kBootIdBytes);
  AppendText(out, record.key.gpu.value, kUuidBytes);
  AppendNumber<uint32_t>(out, static_cast<uint32_t>(record.ranges.size()));
  AppendNumber<uint32_t>(out, record.pid_namespace);
  for (const Range& range : record.ranges) {
    for (uint64_t number : {range.va, range.size_bytes, range.arena_offset, range.stored_bytes}) {
      AppendNumber<uint64_t>(out, number);
    }
  }
  if (record.hashes) {
    out.append(record.hashes->key.View());
    for (const Id128& hash : record.hashes->blocks) out.append(hash.View());
  }
  out.append(Checksum(out).View());
  return out;
}

Result<ArenaRecord> DecodeArenaRecord(std::string_view data) {
  constexpr size_t kTail = Id128::kBytes;
  if (data.size() < kHeaderBytes + kTail) return Damaged("it is too short");
  if (!data.starts_with(kMagic)) return Damaged("its first bytes are wrong");
  const auto version = NumberAt<uint32_t>(data, 8);
  if (version != kArenaRecordVersion && version != kArenaRecordVersionWithHashes) {
    return Damaged("its version " + std::to_string(version) + " is unknown");
  }
  const bool has_hashes = version == kArenaRecordVersionWithHashes;
  std::string_view body = data.substr(0, data.size() - kTail);
  if (Checksum(body) != Id128::FromRaw(data.data() + body.size())) {
    return Damaged("its checksum is wrong");
  }
  const auto flags = NumberAt<uint32_t>(data, 12);
  const uint64_t count = NumberAt<uint32_t>(data, 144);
  if ((flags & ~(kComplete | kHasChecksum)) != 0) return Damaged("it has unknown flags");
  const size_t hashes_at = kHeaderBytes + count * kRangeBytes;
  if (count > kMaxRanges ||
      (has_hashes ? body.size() < hashes_at + kTail : body.size() != hashes_at)) {
    return Damaged("its length does not match its contents");
  }
  if (!IsTextAt(data, 56, kBootIdBytes) || !IsTextAt(data, 96, kUuidBytes)) {
    return Damaged("a text is not padded with zeros");
  }
  ArenaRecord record;
  record.key.process.pid.value = NumberAt<int32_t>(data, 16);
  record.owner = NumberAt<uint32_t>(data, 20);
  record.key.process.start_time = NumberAt<uint64_t>(data, 24);
  record.data_bytes = NumberAt<uint64_t>(data, 32);
  record.checksum = Id128::FromRaw(data.data() + 40);
  record.boot_id = TextAt(data, 56, kBootIdBytes);
  record.key.gpu.value = TextAt(data, 96, kUuidBytes);
  record.pid_namespace = NumberAt<uint32_t>(data, 148);
  record.complete = (flags & kComplete) != 0;
  record.has_checksum = (flags & kHasChecksum) != 0;
  record.ranges.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const size_t at = kHeaderBytes + i * kRangeBytes;
    record.ranges.push_back({NumberAt<uint64_t>(data, at), NumberAt<uint64_t>(data, at + 8),
                             NumberAt<uint64_t>(data, at + 16), NumberAt<uint64_t>(data, at + 24)});
  }
  if (auto total = TotalBytes(record.ranges); !total) return Damaged(total.error().message);
  if (auto within = CheckWithin(record.ranges, record.data_bytes); !within) {
    return Damaged(within.error().message);
  }
  if (!has_hashes) return record;
  const size_t blocks = BlockCount(record.ranges);
  if (body.size() != hashes_at + kTail + blocks * Id128::kBytes) {
    return Damaged("the number of hashes differs from the number of blocks");
  }
  auto hash_at = [&](size_t i) {
    return Id128::FromRaw(data.data() + hashes_at + i * Id128::kBytes);
  };
  record.hashes = ArenaHashes{hash_at(0), {}};
  record.hashes->blocks.reserve(blocks);
  for (size_t i = 1; i <= blocks; ++i) record.hashes->blocks.push_back(hash_at(i));
  return record;
}

}  // namespace stasis::dataplane
