// Reads the input as the text of a key, as an encrypted object, and as the lengths of the pieces in
// which an undamaged unit arrives. Also corrects the header of the object, so that it reaches the
// decryption, which must reject it.
#include "repository/seal.h"

#include <algorithm>

#include "base/fuzz_input.h"
#include "base/little_endian.h"
#include "repository/keys.h"

namespace stasis::repository {
namespace {

MasterKey FuzzKey() {
  SecretBytes bytes;
  for (size_t i = 0; i < kKeyBytes; ++i) bytes.data()[i] = static_cast<uint8_t>(i);
  return MasterKey(bytes);
}

void ReadKey(std::string_view text) {
  auto key = ParseKey(text, "fuzz");
  if (!key) return;
  auto again = ParseKey(FormatKey(*key), "fuzz");
  FuzzCheck(again && again->bytes() == key->bytes() && again->id() == key->id());
}

void ReadObject(const MasterKey& master, std::string object) {
  if (auto plain = OpenObject(master, "manifest of a", object, "fuzz")) {
    FuzzCheck(SealedObjectBytes(plain->size()) == object.size());
    return;
  }
  if (object.size() < SealedObjectBytes(0)) return;
  std::string header = "stsl";
  AppendNumber(header, uint32_t{1});
  header += master.id().View();
  object.replace(0, header.size(), header);
  const uint64_t plain_bytes = object.size() - SealedObjectBytes(0);
  std::memcpy(object.data() + kSealHeaderBytes - sizeof plain_bytes, &plain_bytes,
              sizeof plain_bytes);
  auto plain = OpenObject(master, "another purpose", object, "fuzz");
  FuzzCheck(!plain && plain.error().code == Code::kDataLoss);
}

// Each byte is the length of a piece. Pieces of length 0 are tried too.
void ReadUnit(const MasterKey& master, std::string_view lengths) {
  const std::string unit(300, 'u');
  auto sealer = PackSealer::Create(master);
  std::string sealed(SealedUnitBytes(unit.size()), '\0'), plain(unit.size(), '\0');
  FuzzCheck(sealer && sealer->Seal(unit, sealed.data()));
  auto opener = PackOpener::Create(master, sealer->pack());
  FuzzCheck(opener && opener->Begin(0, plain));
  std::string_view rest = sealed;
  for (const char length : lengths) {
    const size_t piece = std::min<size_t>(static_cast<uint8_t>(length), rest.size());
    FuzzCheck(opener->Add(rest.substr(0, piece)).has_value());
    rest.remove_prefix(piece);
    FuzzCheck(opener->missing() == rest.size());
  }
  FuzzCheck(opener->Finish().has_value() == rest.empty());
  FuzzCheck(plain == (rest.empty() ? unit : std::string(unit.size(), '\0')));
}

}  // namespace
}  // namespace stasis::repository

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::repository;  // NOLINT(google-build-using-namespace)
  static const MasterKey master = FuzzKey();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  ReadKey(input);
  ReadObject(master, std::string(input));
  ReadUnit(master, input);
  return 0;
}
