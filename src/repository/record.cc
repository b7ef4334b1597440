#include "repository/record.h"

#include <fmt/format.h>

#include "base/checksum.h"
#include "base/little_endian.h"
#include "repository/limits.h"

namespace stasis::repository {

namespace {

constexpr std::string_view kMagic = "\x89STREPO\n";
constexpr size_t kHeaderBytes = 48;
constexpr uint64_t kKnownFeatures = 0;

tl::unexpected<Error> Damaged(const std::string& what, const std::string& how) {
  return Fail(Code::kDataLoss, Domain::kImage, 0, what + " is damaged: " + how);
}

}  // namespace

std::string EncodeRecord(const RecordHeader& header, std::string_view body) {
  std::string record(kMagic);
  AppendNumber(record, kFormatVersion);
  AppendNumber(record, static_cast<uint32_t>(header.kind));
  AppendNumber(record, uint64_t{0});
  record += header.repository.View();
  AppendNumber(record, static_cast<uint32_t>(header.key.size()));
  AppendNumber(record, uint32_t{0});
  record += header.key;
  record += body;
  record += Checksum(record).View();
  return record;
}

Result<DecodedRecord> DecodeRecord(std::string_view record, const std::string& what) {
  if (record.size() < kHeaderBytes + Id128::kBytes) return Damaged(what, "it is too short");
  if (!record.starts_with(kMagic)) {
    return Damaged(what, "it does not begin as an object of a Stasis repository does");
  }
  const std::string_view checked = record.substr(0, record.size() - Id128::kBytes);
  if (Checksum(checked).View() != record.substr(checked.size())) {
    return Damaged(what, "its checksum is wrong");
  }
  const auto version = NumberAt<uint32_t>(record, 8);
  const auto features = NumberAt<uint64_t>(record, 16);
  if (version != kFormatVersion || (features & ~kKnownFeatures) != 0) {
    return Fail(Code::kUnimplemented, Domain::kImage, 0,
                fmt::format("{} has format version {} with features {:#x}; this Stasis supports "
                            "version {}",
                            what, version, features, kFormatVersion),
                "Use a newer Stasis.");
  }
  const auto key_bytes = NumberAt<uint32_t>(record, 40);
  if (key_bytes > kMaxRecordKeyBytes || kHeaderBytes + key_bytes > checked.size()) {
    return Damaged(what, "its key is too long");
  }
  DecodedRecord decoded;
  decoded.header.kind = static_cast<RecordKind>(NumberAt<uint32_t>(record, 12));
  decoded.header.repository = Id128::FromRaw(record.data() + 24);
  decoded.header.key = checked.substr(kHeaderBytes, key_bytes);
  decoded.body = checked.substr(kHeaderBytes + key_bytes);
  return decoded;
}

tl::unexpected<Error> BadRecord(const std::string& how) {
  return Fail(Code::kDataLoss, Domain::kImage, 0, how);
}

Result<std::string_view> BodyReader::Bytes(uint64_t count) {
  if (count > rest_.size()) return BadRecord("it ends too early");
  const std::string_view bytes = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return bytes;
}

Result<uint32_t> BodyReader::Count(uint64_t most, uint64_t entry_bytes, const char* what) {
  STASIS_ASSIGN(const auto count, Number<uint32_t>());
  if (count > most)
    return BadRecord(fmt::format("it claims {} {}; at most {} are allowed", count, what, most));
  if (count * entry_bytes > rest_.size()) {
    return BadRecord(fmt::format("it claims {} {}, but is too short for them", count, what));
  }
  return count;
}

Status BodyReader::End() const {
  if (!rest_.empty()) return BadRecord(fmt::format("{} bytes follow its end", rest_.size()));
  return {};
}

}  // namespace stasis::repository
