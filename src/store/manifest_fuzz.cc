// Reads the input as a manifest file, like ImageReader. Then corrects its magic, version, length of
// the body and checksum and reads it again, so that most inputs reach the protobuf decoder and the
// checks that follow it. An origin MAC in the input is never valid.
#include <algorithm>
#include <string>

#include "base/checksum.h"
#include "base/fuzz_input.h"
#include "store/envelope.h"
#include "store/limits.h"
#include "store/manifest_check.h"
#include "store/manifest_codec.h"

namespace stasis::store {
namespace {

// Returns the number of units of a sequence that is stored in packs. Each unit of a pack has
// `pack_unit_bytes` bytes.
uint64_t CheckRuns(const Manifest& manifest, const std::vector<UnitRun>& runs,
                   uint32_t pack_unit_bytes) {
  uint64_t units = 0;
  for (const UnitRun& run : runs) {
    units += run.units;
    FuzzCheck(run.is_zero() || manifest.packs.at(run.pack).unit_bytes == pack_unit_bytes);
    FuzzCheck(run.is_zero() || uint64_t{run.first} + run.units <= kMaxPackUnits);
  }
  return units;
}

// Independently checks the rules that the rest of Stasis relies on once a manifest is accepted.
void CheckTrusted(const Manifest& manifest) {
  for (const File& file : manifest.files) {
    FuzzCheck(!file.path.ends_with("/.") && !file.path.ends_with("/.."));
    FuzzCheck(!file.path.starts_with('/') &&
              std::count(file.path.begin(), file.path.end(), '/') == 1);
    FuzzCheck(file.path.find('\0') == file.path.npos);
    // A file may not claim so many bytes that the number of its checksums overflows.
    FuzzCheck(file.size_bytes <= file.checksums.size() * uint64_t{manifest.chunk_bytes});
  }
  for (const DeviceRange& range : manifest.ranges) {
    FuzzCheck(range.gpu < manifest.gpus.size());
    const uint64_t units = CheckRuns(manifest, range.runs, kBlockBytes);
    FuzzCheck(range.block_bytes <= kBlockBytes &&
              range.size_bytes <= units * uint64_t{range.block_bytes});
    FuzzCheck(range.address + range.size_bytes > range.address);
  }
  for (const PageFile& file : manifest.page_files) {
    FuzzCheck(file.path.starts_with("cpu/") && file.path.find('/', 4) == file.path.npos);
    const uint64_t pages = CheckRuns(manifest, file.runs, kPageBytes);
    FuzzCheck(pages * kPageBytes == file.size_bytes && pages <= kMaxFileBytes / kPageBytes);
  }
}

OriginKey FuzzKey() { return OriginKey(BlockSecret{7}); }

void Read(const std::string& file) {
  auto body = OpenEnvelope(file, "fuzz");
  if (!body) return;
  if (auto origin = ReadOrigin(file)) FuzzCheck(!FuzzKey().Verify(origin->mac, origin->digest));
  auto manifest = DecodeManifest(*body);
  if (!manifest) {
    (void)manifest.error().ToString();
    return;
  }
  CheckTrusted(*manifest);
  for (const File& seen : manifest->files) (void)Printable(seen.path, 7);
  for (const std::string& arg : manifest->job.argv) (void)Printable(arg, 7);
  // A manifest that was read can be encoded again, with the same result.
  auto again = EncodeManifest(*manifest);
  FuzzCheck(again.has_value());
  auto same = DecodeManifest(*again);
  FuzzCheck(same.has_value());
  FuzzCheck(*EncodeManifest(*same) == *again);
  FuzzCheck(OpenEnvelope(SealEnvelope(*again, FeaturesOf(*same)), "fuzz").has_value());
  const OriginKey key = FuzzKey();
  const std::string own = SealEnvelope(*again, FeaturesOf(*same), &key);
  FuzzCheck(OpenEnvelope(own, "fuzz") == *again);
  auto origin = ReadOrigin(own);
  FuzzCheck(origin && key.Verify(origin->mac, origin->digest));
}

template <class T>
void Write(std::string& to, size_t offset, T value) {
  std::memcpy(&to[offset], &value, sizeof value);
}

}  // namespace
}  // namespace stasis::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::store;
  std::string file(reinterpret_cast<const char*>(data), size);
  Read(file);
  if (size < kEnvelopeBytes) return 0;
  file.replace(0, 8, "\x89STASIS\n");
  Write<uint32_t>(file, 8, kFormatVersion);
  Write<uint32_t>(file, 12, kEnvelopeHeaderBytes);
  const bool has_origin = (static_cast<uint8_t>(file[24]) & kFeatureOrigin) != 0 &&
                          size >= kEnvelopeBytes + kOriginBytes;
  Write<uint64_t>(file, 16, size - kEnvelopeBytes - (has_origin ? kOriginBytes : 0));
  Write<uint64_t>(file, 24, has_origin ? kFeatureOrigin : 0);
  file.resize(size - stasis::Id128::kBytes);
  file += stasis::Checksum(file).View();
  Read(file);
  return 0;
}
