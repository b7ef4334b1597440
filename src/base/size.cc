#include "base/size.h"

#include <charconv>
#include <cmath>

namespace stasis {

Result<uint64_t> ParseSize(const std::string& text) {
  auto wrong = [&](const char* why) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "'" + text.substr(0, 64) + "' is not a size: " + why,
                "for example 32GiB, 512M or 1.5T; 1024 TiB at most");
  };
  const char* end = text.data() + text.size();
  double number = 0;
  auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return wrong("not a number");

  std::string unit(rest, end);
  for (char& c : unit) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  static constexpr struct {
    const char* name;
    double bytes;
  } kUnits[] = {{"", 1},         {"B", 1},      {"K", 0x1p10},   {"KIB", 0x1p10}, {"M", 0x1p20},
                {"MIB", 0x1p20}, {"G", 0x1p30}, {"GIB", 0x1p30}, {"T", 0x1p40},   {"TIB", 0x1p40},
                {"KB", 1e3},     {"MB", 1e6},   {"GB", 1e9},     {"TB", 1e12}};
  for (const auto& known : kUnits) {
    if (unit != known.name) continue;
    double bytes = number * known.bytes;
    if (bytes < 1) return wrong("less than a byte");
    if (bytes > static_cast<double>(kMaxSizeBytes)) return wrong("too much");
    return static_cast<uint64_t>(bytes);
  }
  return wrong("unknown unit");
}

}  // namespace stasis
