// Fuzzes the parser of configuration files. A file is either rejected with a message that names a
// line, or every accepted value is within its bounds and unchanged after it is printed and parsed
// again.
#include "base/fuzz_input.h"
#include "config/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis;          // NOLINT(google-build-using-namespace)
  using namespace stasis::config;  // NOLINT(google-build-using-namespace)
  auto entries = ParseFile({reinterpret_cast<const char*>(data), size}, "/f");
  if (!entries) {
    FuzzCheck(entries.error().message.starts_with("/f, line "));
    return 0;
  }
  Settings settings;
  for (const Entry& entry : *entries) {
    const Row& row = Rows()[entry.row];
    if (!Set(row, entry.raw, From::kFile, settings)) continue;
    const std::string text = Text(row, settings);
    FuzzCheck(text.find_first_of(std::string("\n\0", 2)) == std::string::npos);
    if (row.kind == Kind::kSeconds) {
      const double value = settings.*std::get<double Settings::*>(row.member);
      FuzzCheck(value >= row.min && value <= row.max);
    }
    if (row.kind == Kind::kSize) {
      const auto value = static_cast<double>(settings.*std::get<uint64_t Settings::*>(row.member));
      FuzzCheck(value >= row.min && value <= row.max);
    }
    Settings again;
    FuzzCheck(Set(row, text, From::kDefault, again).has_value());
    FuzzCheck(Text(row, again) == text);
  }
  return 0;
}
