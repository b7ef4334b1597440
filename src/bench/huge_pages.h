// The machine's setting for transparent huge pages. The speed of the driver's own path depends on
// it, because the driver copies to the program's memory.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::bench {

// Returns "always", "madvise" or "never"; empty if the kernel has no such setting.
std::string HugePages();

// Changes the setting while the object exists.
class HugePagesSetting {
 public:
  // Returns kPermissionDenied if this process lacks the necessary rights.
  static Result<HugePagesSetting> Set(const std::string& mode);
  ~HugePagesSetting();
  HugePagesSetting(HugePagesSetting&& other) noexcept;
  HugePagesSetting& operator=(HugePagesSetting&& other) noexcept;

 private:
  explicit HugePagesSetting(std::string before) : before_(std::move(before)) {}
  std::string before_;  // empty: moved from
};

}  // namespace stasis::bench
