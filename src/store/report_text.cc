#include "store/report_text.h"

#include <fmt/format.h>
#include <time.h>

#include "store/manifest_check.h"

namespace stasis::store {

using nlohmann::json;

std::string Bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Utc(int64_t unix_ns) {
  time_t seconds = unix_ns / 1'000'000'000;
  tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "-";
  char text[64];
  return ::strftime(text, sizeof text, "%FT%TZ", &parts) > 0 ? text : "-";
}

json Text(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

json Texts(const std::vector<std::string>& texts) {
  json array = json::array();
  for (const std::string& text : texts) array.push_back(Text(text));
  return array;
}

std::string CommandLine(const Job& job) {
  std::string line;
  for (const std::string& arg : job.argv) line += (line.empty() ? "" : " ") + Printable(arg);
  return Printable(line, 500);
}

std::string JobName(const Job& job) {
  return job.id.empty() ? fmt::format("pid {}", job.root_pid) : Printable(job.id);
}

uint64_t DeviceBytes(const Manifest& manifest) {
  uint64_t total = 0;
  for (const Gpu& gpu : manifest.gpus) total += gpu.used_bytes;
  return total;
}

}  // namespace stasis::store
