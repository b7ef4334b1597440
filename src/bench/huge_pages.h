// The machine's setting for transparent huge pages, on which the speed of the driver's own path
// depends: it copies into the program's RAM.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::bench {

// "always", "madvise", "never"; empty where the kernel has none.
std::string HugePages();

// Sets it as long as the object lives.
class HugePagesSetting {
 public:
  // kPermissionDenied without the right to.
  static Result<HugePagesSetting> Set(const std::string& mode);
  ~HugePagesSetting();
  HugePagesSetting(HugePagesSetting&& other) noexcept;
  HugePagesSetting& operator=(HugePagesSetting&& other) noexcept;

 private:
  explicit HugePagesSetting(std::string before) : before_(std::move(before)) {}
  std::string before_;  // empty: moved from
};

}  // namespace stasis::bench
