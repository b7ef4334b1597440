#include "bench/huge_pages.h"

#include <fcntl.h>

#include <utility>

#include "base/file.h"

namespace stasis::bench {
namespace {

constexpr const char* kFile = "/sys/kernel/mm/transparent_hugepage/enabled";

Status Write(const std::string& mode) {
  STASIS_ASSIGN(UniqueFd fd, Open(kFile, O_WRONLY));
  return WriteAll(fd.get(), mode);
}

}  // namespace

std::string HugePages() {
  // "always [madvise] never"
  const std::string text = ReadFile(kFile, 4096).value_or("");
  const size_t begin = text.find('[');
  const size_t end = text.find(']', begin);
  if (begin == text.npos || end == text.npos) return "";
  return text.substr(begin + 1, end - begin - 1);
}

Result<HugePagesSetting> HugePagesSetting::Set(const std::string& mode) {
  std::string before = HugePages();
  if (before.empty()) {
    return Fail(Code::kUnimplemented, "this kernel has no setting for transparent huge pages");
  }
  STASIS_TRY(Annotate(Write(mode), "set transparent huge pages to " + mode));
  return HugePagesSetting(std::move(before));
}

HugePagesSetting::HugePagesSetting(HugePagesSetting&& other) noexcept
    : before_(std::exchange(other.before_, {})) {}

HugePagesSetting& HugePagesSetting::operator=(HugePagesSetting&& other) noexcept {
  std::swap(before_, other.before_);
  return *this;
}

HugePagesSetting::~HugePagesSetting() {
  if (!before_.empty()) (void)Write(before_);
}

}  // namespace stasis::bench
