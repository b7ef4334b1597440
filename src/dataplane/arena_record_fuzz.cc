// Fuzzes the decoder of arena records, which are in a folder where their owner can write. The input
// is decoded unchanged, and again with corrected magic, version, number of ranges and checksum.
#include "dataplane/arena_record.h"

#include "base/checksum.h"
#include "base/fuzz_input.h"

namespace stasis::dataplane {
namespace {

constexpr size_t kHeaderBytes = 152;
constexpr size_t kTail = 16;

void Read(const std::string& bytes) {
  auto record = DecodeArenaRecord(bytes);
  if (!record) {
    (void)record.error().ToString();
    return;
  }
  for (const Range& range : record->ranges) {
    FuzzCheck(range.arena_offset + range.stored_bytes >= range.arena_offset);
    FuzzCheck(range.arena_offset + range.stored_bytes <= record->data_bytes);
    FuzzCheck(range.stored_bytes <= range.size_bytes);
  }
  // Only output of Encode is accepted.
  FuzzCheck(Encode(*record) == bytes);
}

}  // namespace
}  // namespace stasis::dataplane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::dataplane;
  std::string record(reinterpret_cast<const char*>(data), size);
  Read(record);
  if (size < kHeaderBytes + kTail) return 0;
  const uint32_t version = kArenaRecordVersion;
  const auto count = static_cast<uint32_t>((size - kHeaderBytes - kTail) / 32);
  record.replace(0, 8, "STASISAR");
  std::memcpy(&record[8], &version, sizeof version);
  std::memcpy(&record[144], &count, sizeof count);
  record.resize(kHeaderBytes + count * size_t{32});
  record += stasis::Checksum(record).View();
  Read(record);
  return 0;
}
