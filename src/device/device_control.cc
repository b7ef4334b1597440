#include "device/device_control.h"

#include <charconv>

#include "base/hex.h"

namespace stasis::device {

std::string_view StateName(ProcessState state) {
  static constexpr std::string_view kNames[] = {"none", "running", "locked", "checkpointed",
                                                "failed"};
  return kNames[static_cast<size_t>(state)];
}

GpuUuid GpuUuidOf(const uint8_t (&bytes)[16]) {
  std::string text = HexOfBytes({reinterpret_cast<const char*>(bytes), sizeof bytes});
  for (size_t hyphen : {8, 13, 18, 23}) text.insert(hyphen, "-");
  return GpuUuid{"GPU-" + text};
}

bool GpuUuidBytes(const GpuUuid& uuid, uint8_t (&bytes)[16]) {
  std::string_view text = uuid.value;
  constexpr std::string_view kPrefix = "GPU-";
  constexpr size_t kDigits = 36;  // including four hyphens
  if (!text.starts_with(kPrefix) || text.size() != kPrefix.size() + kDigits) return false;
  text.remove_prefix(kPrefix.size());
  size_t count = 0;
  for (size_t i = 0; i < kDigits;) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (text[i++] != '-') return false;
      continue;
    }
    const char* end = text.data() + i + 2;
    if (std::from_chars(text.data() + i, end, bytes[count++], 16).ptr != end) return false;
    i += 2;
  }
  return true;
}

}  // namespace stasis::device
